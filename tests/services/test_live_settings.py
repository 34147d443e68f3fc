"""`swingshift set`, before anything is appended: what can change, what cannot and why, and that all together must fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import PolicyAttached, RunPlanned, SettingChanged, Value
from bus.settings import NAMES, Settings
from services.config import RunConfig
from services.config_file import all_settings, make_config
from services.devices import Machine
from services.live_settings import LIVE, key_of, reason_against
from services.plan import plan_run
from services.setting_changes import Change, SettingsNow, raised_for_cluster, said_anew, shown, value_of, with_values

NOWHERE = Path("no-such-folder")


def planned(**sections: dict[str, object]) -> RunPlanned:
    """Of a run without a model."""
    settings: dict[str, object] = {
        "model": {"path": "scripted"}, "rollout": {"engine": "scripted", "n": 2}, "devices": "unpinned",
        "async_training": {"total_steps": 6, "ppo_mini_batch_size": 4},
    }  # fmt: skip
    for name, changes in sections.items():
        before = settings.get(name, {})
        assert isinstance(before, dict)
        settings[name] = {**before, **changes}
    return plan_run(make_config(settings, "test"), "r1", Machine((0, 1)))


def now(plan: RunPlanned, *changes: tuple[str, Value]) -> SettingsNow:
    """After the plan and these entries."""
    found, positions = SettingsNow(), count(1)
    for event in (plan, *(SettingChanged(name=name, value=value) for name, value in changes)):
        found.apply(Entry(next(positions), "operator", 0, False, 0, 0, "", event))
    return found


def changed(*assignments: str, found: SettingsNow | None = None) -> list[tuple[str, Value]]:
    found = found or now(planned())
    return [(change.event().name, change.value) for change in found.changes(assignments, found.config(NOWHERE))]


def complaint(*assignments: str, found: SettingsNow | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        changed(*assignments, found=found)
    return str(caught.value)


def test_every_setting_can_change_live_or_has_a_reason_why_not() -> None:
    for key in all_settings():
        assert (key in LIVE) != bool(reason_against(key)), key


def test_the_table_and_the_fold_name_the_same_settings() -> None:
    assert {live.name for live in LIVE.values()} == set(NAMES)


def test_every_setting_that_can_change_is_taken_by_its_own_value() -> None:
    """Whatever the configuration takes is in the limits of the event, too: none would be refused by the fold."""
    found = now(planned())
    config = found.config(NOWHERE)
    settings = Settings()
    settings.apply(planned())
    for key in LIVE:
        assert settings.apply(Change(key, None, value_of(config, key)).event()), key


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("staleness_threshold=1", "staleness_threshold", 1.0),
        ("async_training.staleness_threshold=0.25", "staleness_threshold", 0.25),
        ("enable_rebalance=false", "enable_rebalance", False),
        ("max_version_lag=2", "max_version_lag", 2),
        ("rollout.partial_rollout=no", "partial_rollout", False),
        ("deadlines.wake_s=5", "deadlines.wake_s", 5.0),
        ("verdict_s=0.5", "deadlines.verdict_s", 0.5),
        ("eval_timeout_s=9", "eval_timeout_s", 9.0),
        ("filter_groups=true", "filter_groups", True),
        ("redis.memory_budget=2GiB", "memory_budget", 2 << 30),
        ("memory_pause_at=0.9", "memory_pause_at", 0.9),
    ],
)
def test_a_setting_is_named_in_full_by_its_last_part_or_as_the_log_has_it(assignment: str, name: str, value: Value) -> None:
    assert changed(assignment) == [(name, value)]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("staleness_threshold=-1", "run r1: async_training.staleness_threshold is -1, it must be at least 0"),
        ("staleness_threshold=.inf", "async_training.staleness_threshold is inf"),
        ("staleness_threshold=much", "async_training.staleness_threshold is 'much'"),
        ("max_lent_s=0", "async_training.max_lent_s is 0, it must be above 0"),
        ("on_version_lag=never", "async_training.on_version_lag is 'never', it must be 'drop' or 'wait'"),
        ("memory_pause_at=2", "redis.memory_pause_at is 2, it must be at most 1"),
        ("memory_pause_at=0.5", "redis.memory_resume_at is 0.6, which is over redis.memory_pause_at, 0.5"),
        ("stalenes_threshold=1", "stalenes_threshold is no setting: did you mean async_training.staleness_threshold?"),
        ("async_training.learning_rate=1", "async_training.learning_rate is no setting: did you mean actor.lr?"),
        ("wake_s=1", "wake_s may be deadlines.wake_s or scripted.wake_s: name it in full"),
        ("temperature=1", "temperature may be rollout.temperature or actor.temperature or evaluation.temperature: name it in full"),
        ("staleness_threshold", "staleness_threshold: it must be of the form NAME=VALUE"),
        ("=1", "=1: it must be of the form NAME=VALUE"),
        ("staleness_threshold=[1", "staleness_threshold=[1 is no YAML"),
        ("on_redo_diverged=auto", "async_training.on_redo_diverged is auto: on a live run say stop or republish"),
        ("every_versions=2", "evaluation.every_versions is 2 and there are no validation prompts"),
    ],
)
def test_what_a_configuration_would_refuse_is_refused_in_the_same_words(assignment: str, words: str) -> None:
    plan = planned(data={"val_prompts": 0})
    assert words in complaint(assignment, found=now(plan))


def test_answers_cannot_be_made_to_start_over_in_a_run_that_keeps_them_over_updates() -> None:
    plan = planned(rollout={"weight_update_mode": "keep"})
    assert "weight_update_mode is keep and rollout.partial_rollout is false" in complaint("partial_rollout=false", found=now(plan))


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("rollout.temperature=0.5", "rollout.temperature cannot change on a live run: a replica reads it when it starts"),
        ("actor.temperature=0.5", "actor.temperature cannot change on a live run: a replica reads it when it starts"),
        ("lr=1e-4", "lr may be model.warm_start.lr or actor.lr"),
        ("actor.lr=1e-4", "actor.lr cannot change on a live run: weights depend on it"),
        ("rollout.n=3", "rollout.n cannot change on a live run: token budgets, batches and advantages"),
        ("total_steps=9", "async_training.total_steps cannot change on a live run: steps, cycles, data epochs"),
        ("trigger_parameter_sync_step=9", "async_training.trigger_parameter_sync_step cannot change on a live run: steps, cycles"),
        ("tail=drop", "async_training.tail cannot change on a live run: the number of steps was worked out with it"),
        ("weight_update_mode=keep", "rollout.weight_update_mode cannot change on a live run: replicas set up their engines' caches for it"),
        ("max_running_requests=1", "rollout.max_running_requests cannot change on a live run: memory is allocated by it"),
        ("replicas.hybrid=2", "replicas.hybrid cannot change on a live run: the plan names every replica"),
        ("policy.name=default", "policy.name cannot change on a live run: a policy begins with its settings; `swingshift policy swap`"),
        ("data.seed=2", "data.seed cannot change on a live run: it fixes which prompts come"),
        ("max_restarts=2", "supervisor.max_restarts cannot change on a live run: it is read when the run is started"),
        ("model.path=x", "model.path cannot change on a live run: the model is made or read before the first step"),
        ("before_train=true", "evaluation.before_train cannot change on a live run: it is over when a run has begun"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(assignment: str, words: str) -> None:
    assert words in complaint(assignment)


def test_everything_that_cannot_change_is_said_at_once_and_nothing_is_changed() -> None:
    told = complaint("staleness_threshold=1", "rollout.n=3", "total_steps=9").splitlines()
    assert [line.partition(" ")[0] for line in told] == ["rollout.n", "async_training.total_steps"]


def test_settings_that_must_fit_together_are_measured_together() -> None:
    waiting = now(planned(async_training={"max_version_lag": 1, "on_version_lag": "wait"}))
    words = "async_training.max_version_lag is 1 and staleness_threshold is 1.5: more samples may be outstanding than 2 cycles can train"
    assert words in complaint("staleness_threshold=1.5", found=waiting)
    assert changed("staleness_threshold=1.5", "max_version_lag=2", found=waiting) == [("max_version_lag", 2), ("staleness_threshold", 1.5)]
    assert changed("staleness_threshold=1.5", "on_version_lag=drop", found=waiting)[0] == ("on_version_lag", "drop")
    dropping = now(planned(async_training={"max_version_lag": 0}))
    assert changed("on_version_lag=wait", "staleness_threshold=0", found=dropping) == [
        ("staleness_threshold", 0.0),
        ("on_version_lag", "wait"),
    ]


@pytest.mark.parametrize("first", ["staleness_threshold=0.75", "max_version_lag=3", "on_version_lag=wait"])
@pytest.mark.parametrize("second", ["staleness_threshold=3", "max_version_lag=1", "on_version_lag=drop", "max_version_lag=null"])
def test_in_the_order_that_is_found_each_change_fits_to_those_before_it(first: str, second: str) -> None:
    if first.partition("=")[0] == second.partition("=")[0]:
        return
    found = now(planned(async_training={"max_version_lag": 2, "on_version_lag": "wait"}))
    try:
        ordered = found.changes((first, second), found.config(NOWHERE))
    except ConfigError:
        return
    fold = Settings()
    fold.apply(planned(async_training={"max_version_lag": 2, "on_version_lag": "wait"}))
    assert all(fold.apply(change.event()) for change in ordered)


def test_a_setting_is_measured_against_what_was_changed_before() -> None:
    found = now(planned(), ("max_version_lag", 1), ("on_version_lag", "wait"))
    assert "max_version_lag is 1 and staleness_threshold is 2.0" in complaint("staleness_threshold=2", found=found)
    assert found.changed_at == {"max_version_lag": 2, "on_version_lag": 3}
    config = found.config(NOWHERE)
    assert (config.async_training.max_version_lag, config.async_training.on_version_lag) == (1, "wait")


def test_what_is_so_already_is_no_change() -> None:
    assert changed("staleness_threshold=0.5", "enable_rebalance=true") == []
    assert changed("staleness_threshold=0.5", found=now(planned(), ("staleness_threshold", 1.0))) == [("staleness_threshold", 0.5)]


def test_more_answers_to_a_validation_prompt_need_a_temperature() -> None:
    validated = planned(data={"val_prompts": 4}, evaluation={"every_versions": 1})
    assert "evaluation.n is 2 and evaluation.temperature 0: all answers would be the same" in complaint(
        "evaluation.n=2", found=now(validated)
    )
    warm = planned(data={"val_prompts": 4}, evaluation={"every_versions": 1, "temperature": 1.0})
    assert changed("eval_n=2", found=now(warm)) == [("eval_n", 2)]


def test_a_setting_that_is_set_twice_in_one_command_is_a_mistake() -> None:
    assert complaint("staleness_threshold=1", "async_training.staleness_threshold=2") == "async_training.staleness_threshold is set twice"


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (None, "null"), (0.5, "0.5"), (3, "3"), ("drop", "drop")])
def test_values_are_shown_as_they_are_written(value: Value, text: str) -> None:
    assert shown(value) == text


def test_a_setting_of_this_machine_is_said_anew_where_a_run_goes_on_for_the_logs_word_counts_for_more() -> None:
    found = now(planned(), ("memory_budget", 1 << 20))

    def said(*settings: str) -> Sequence[SettingChanged]:
        budget = 1 << 30 if settings else 1 << 20
        config: RunConfig = with_values(found.config(NOWHERE), {"redis.memory_budget": budget}, "test")
        return said_anew(found.settings, config, settings)

    assert said("redis.memory_budget=1GiB", "model.path=/x") == [SettingChanged(name="memory_budget", value=1 << 30)]
    assert said() == []
    assert said_anew(now(planned()).settings, found.config(NOWHERE), ["redis.memory_budget=1GiB"]) == []


def test_a_run_of_one_machine_that_goes_on_on_a_cluster_gives_killed_replicas_its_time_unless_the_user_gave_another() -> None:
    """By itself it is 30 s; on a cluster it is heard after about a minute that a node is gone."""
    raised = [SettingChanged(name="deadlines.kill_s", value=120.0)]
    assert raised_for_cluster(now(planned()).settings) == raised
    assert raised_for_cluster(now(planned(), ("deadlines.kill_s", 120.0)).settings) == []
    assert raised_for_cluster(now(planned(), ("deadlines.kill_s", 30.0)).settings) == [], "the user's word, though it is the usual one"
    assert raised_for_cluster(now(planned(deadlines={"kill_s": 45})).settings) == []
    assert LIVE["deadlines.kill_s"].name == raised[0].name


def test_names_are_found_in_full_even_if_others_end_alike() -> None:
    assert key_of("scripted.wake_s") == "scripted.wake_s"
    assert key_of("actor.lr") == "actor.lr"


@pytest.mark.parametrize("named", ["policy.params.deactivate_ratio", "deactivate_ratio"])
def test_a_setting_of_a_policy_is_changed_by_putting_the_policy_in_its_own_place(named: str) -> None:
    found = now(planned())
    attached = PolicyAttached(name="fixed_ratio", params={"deactivate_ratio": 0.3}, mode="active", code="")
    found.apply(Entry(2, "policy", 1, False, 0, 0, "", attached))
    words = complaint(f"{named}=0.5", "staleness_threshold=1", found=found)
    assert words.startswith(f"{named} is a setting of a policy")
    assert "`swingshift policy swap r1 fixed_ratio --set deactivate_ratio=0.5`" in words
