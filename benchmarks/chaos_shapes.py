"""The runs that chaos strikes: short, cheap, with swings, drops and evaluations; which one it is, a seed determines."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SUPERVISOR = {"max_restarts": 1000, "first_delay_s": 0.05, "longest_delay_s": 0.2, "healthy_after_s": 1.0}
STEPS_OF_A_KILL = {"scripted": 12, "model": 20}
"""So that the run goes on until its last kill, and for a while after it."""
CYCLE = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """One configuration."""

    kind: str
    config: dict[str, object] = field(default_factory=dict)
    replicas: tuple[str, ...] = ()
    most_steps: int = 0
    payloads: int = 0
    """Most of them that Redis may hold at a time, however long the run is."""


def make_shape(kind: str, seed: int, number: int, kills: int) -> Shape:
    """The shape of run `number`."""
    source = random.Random(f"{seed}:{number}:shape")
    standalone, hybrid = source.choice([(1, 1), (1, 1), (1, 1), (0, 1), (1, 2)])
    samples, answers, every = source.choice([2, 4]), 2 if kind == "scripted" else 4, source.choice([1, 2])
    threshold = source.choice([0.0, 0.5, 1.0])
    steps = CYCLE * -(-(CYCLE * 3 + kills * STEPS_OF_A_KILL[kind]) // CYCLE)
    length: dict[str, object] = source.choice([{"total_steps": steps}, {"total_steps": steps}, {"num_prompts": steps * samples - 1}])
    timing: dict[str, object] = {
        "ppo_mini_batch_size": samples, "trigger_parameter_sync_step": CYCLE, "staleness_threshold": threshold,
        "checkpoint_every_versions": every, **length, **source.choice([{}, {}, {"max_version_lag": 1}]),
    }  # fmt: skip
    config: dict[str, object] = {
        "data": {"task": "sorting", "seed": number + 1, "val_prompts": 4},
        "replicas": {"standalone": standalone, "hybrid": hybrid},
        "async_training": timing,
        "policy": source.choice([{"name": "fixed_ratio"}, {"name": "default", "params": {"deactivate_ratio": 0.6}}]),
        "evaluation": source.choice([{}, {}, {"every_versions": 2}]),
        "supervisor": SUPERVISOR,
        "monitor": {"trackers": []},
        "devices": "unpinned",
        **(_scripted(answers) if kind == "scripted" else _model(answers)),
    }
    rollout = config["rollout"]
    assert isinstance(rollout, dict)
    rollout["partial_rollout"] = source.choice([True, True, False])
    names = (*(f"s{index}" for index in range(standalone)), *(f"h{index}" for index in range(hybrid)))
    limit = int(samples * CYCLE * (1 + threshold))
    # Prompt, answers (three attempts each) and sample of what is outstanding; samples of four checkpoints' cycles; an evaluation.
    payloads = limit * (2 + 3 * answers) + samples * CYCLE * (4 * every + 2) + 4 * 4
    return Shape(kind, config, names, steps, payloads)


def _scripted(answers: int) -> dict[str, object]:
    return {
        "model": {"path": "scripted"},
        "rollout": {"engine": "scripted", "n": answers, "max_running_requests": 4},
        "scripted": {"seconds_per_step": 0.04, "tokens_per_second": 200, "shortest_answer": 4, "longest_answer": 24},
    }


def _model(answers: int) -> dict[str, object]:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
    return {
        "model": {"path": "builtin", "shape": shape, "warm_start": {"steps": 3}},
        "rollout": {"n": answers, "max_running_requests": 16},
        "actor": {"lr": 1e-3, "old_logprobs": "recompute"},
    }
