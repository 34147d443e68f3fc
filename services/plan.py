"""Works a configuration out into the run's plan, its log's first entry: totals, seeds, devices, and what else bits depend on.

RunConfig ─plan_checks, resolving─▶ plan_run ─▶ RunPlanned ─▶ log position 1 ─planned─▶ every service, which reads nothing but that
"""

from __future__ import annotations

import json

from bus.events import RunPlanned
from services.config import RunConfig
from services.data.planning import DataPlan, plan_data
from services.devices import Machine, this_machine
from services.learner.environment import environment
from services.plan_checks import check_evaluation, check_sections
from services.planned import engine_config
from services.policy.making import make_policy
from services.policy.source import read_source
from services.precision import engine_environment
from services.resolving import num_prompts, required_samples, resolve
from services.transfer.choice import check_transport


def plan_run(config: RunConfig, run: str, machine: Machine | None = None, data: DataPlan | None = None) -> RunPlanned:
    """The plan of a run. Raises ConfigError when the parts of the configuration do not fit together, or not this machine.

    `data`: what `plan_data` found, if that was asked before.
    """
    check_sections(config)
    policy_source = read_source(config.policy.name)
    make_policy(config.policy.name, config.policy.params, policy_source)  # raises for one that could not start
    data = data or plan_data(config)
    config = resolve(config, machine or this_machine(), data)
    timing, rollout, replicas = config.async_training, config.rollout, config.replicas
    assert rollout.max_prompt_length is not None
    assert rollout.max_response_length is not None
    assert timing.total_steps is not None
    assert timing.on_redo_diverged != "auto"
    assert isinstance(config.devices, dict)
    check_transport(config.weights.transport, rollout.engine, config.devices)
    plan = RunPlanned(
        run=run,
        seed=config.data.seed,
        total_steps=timing.total_steps,
        required_samples=required_samples(config),
        trigger_parameter_sync_step=timing.trigger_parameter_sync_step,
        staleness_threshold=timing.staleness_threshold,
        max_version_lag=timing.max_version_lag,
        on_version_lag=timing.on_version_lag,
        max_logprob_diff=timing.max_logprob_diff or 0.0,
        rollout_n=rollout.n,
        num_prompts=num_prompts(config, data),
        num_validation=data.num_validation,
        eval_every_versions=config.evaluation.every_versions,
        eval_before_train=config.evaluation.before_train,
        eval_n=config.evaluation.n,
        eval_timeout_s=config.evaluation.eval_timeout_s,
        max_prompt_length=rollout.max_prompt_length,
        max_response_length=rollout.max_response_length,
        partial_rollout=rollout.partial_rollout,
        weight_update_mode=rollout.weight_update_mode,
        enable_rebalance=timing.enable_rebalance,
        use_dynamic_resource_scheduling=timing.use_dynamic_resource_scheduling,
        standalone=replicas.standalone_names,
        hybrid=replicas.hybrid_names,
        max_running_requests=rollout.max_running_requests,
        max_attempts=rollout.max_attempts,
        max_failed_samples_in_a_row=rollout.max_failed_samples_in_a_row,
        max_filtered_samples_in_a_row=rollout.max_filtered_samples_in_a_row,
        tail=timing.tail,
        max_tokens_per_micro_batch=config.actor.max_tokens_per_micro_batch,
        checkpoint_every_versions=timing.checkpoint_every_versions,
        on_redo_diverged=timing.on_redo_diverged,
        max_lent_s=timing.max_lent_s,
        deadlines=config.deadlines,
        policy=config.policy.name,
        policy_params=config.policy.params,
        policy_source=policy_source,
        devices=config.devices,
        config=json.dumps(config.resolved(), sort_keys=True),
        environment=environment(config.actor) | data.environment | engine_environment(config),
    )
    check_evaluation(plan, config.evaluation.temperature)
    engine_config(config, plan)  # raises for settings that no replica could start with
    return plan
