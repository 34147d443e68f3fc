"""Evaluations in simulated worlds: with replicas that are lost while they evaluate, with deadlines that pass, and with hybrids only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.events import (
    AbortRequested,
    DeadlineMissed,
    EvalDone,
    EvalRequested,
    EvalScored,
    GenerationRequested,
    RunEnded,
    SampleStarted,
    StopRequested,
    SwitchDone,
    SwitchStarted,
    TrainGranted,
    WeightsPublished,
    WeightUpdateRequested,
)
from services.rollouter.routes import Routes
from tests.cases.runs import of_kind, positions, run_plan, small_plan
from tests.simulation.check import run_world
from tests.simulation.plans import Faults
from tests.simulation.world import World

EVERY_VERSION = {"num_validation": 3, "eval_every_versions": 1, "eval_before_train": True, "eval_n": 2}
SHARDS = 8
SEEDS = 400


def evaluating_world(seed: int) -> World:
    """The world of a seed, with every version evaluated."""
    plan = World(seed).plan.model_copy(update=EVERY_VERSION)
    return World(seed, plan, World(seed).faults)


def run_evaluating(seed: int = 0, faults: Faults | None = None, **changes: object) -> list[Entry]:
    """A small run in which every version is evaluated, checked."""
    return run_plan(small_plan(**{**EVERY_VERSION, **changes}), seed, faults)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_seed_holds_with_every_version_evaluated(shard: int) -> None:
    count = SEEDS // SHARDS
    for seed in range(shard * count, (shard + 1) * count):
        run_world(evaluating_world(seed))


@pytest.mark.parametrize("standalone", [(), ("s0",), ("s0", "s1")], ids=["only hybrids", "one", "two"])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_without_faults_every_version_that_is_due_is_evaluated_whole(seed: int, dynamic: bool, standalone: tuple[str, ...]) -> None:
    # With two standalone replicas one trains on while the other evaluates, so that a version may be passed over.
    every = 1 if len(standalone) < 2 else 3
    entries = run_evaluating(seed, standalone=standalone, use_dynamic_resource_scheduling=dynamic, eval_every_versions=every)
    published = [event.version for event in of_kind(entries, WeightsPublished)]
    done = {event.version: event for event in of_kind(entries, EvalDone)}
    assert sorted(done) == [version for version in published if version % every == 0]
    assert all((event.num_prompts, event.partial) == (3, False) for event in done.values()), done
    assert all(0 <= event.metrics["eval/mean_reward"] <= event.metrics["eval/best_reward"] <= 1 for event in done.values())
    assert positions(entries, EvalDone)[-1] < positions(entries, RunEnded)[0]


@pytest.mark.parametrize("policy", ["default", "static_fully_async", "restless"])
@pytest.mark.parametrize("seed", range(5))
def test_with_hybrids_only_each_evaluation_has_a_swing_of_its_own(seed: int, policy: str) -> None:
    entries = run_evaluating(seed, standalone=(), hybrid=("h0", "h1"), policy=policy)
    swings = [(entry.position, entry.event) for entry in entries if isinstance(entry.event, SwitchStarted)]
    lends = [event for _, event in swings if event.target == "rollout"]
    versions = [event.version for event in of_kind(entries, WeightsPublished)]
    assert sum(event.reason == "evaluation" for event in lends) == len(versions)
    last = next(event for event in reversed(lends) if event.reason == "evaluation")
    assert last.answers is None, "no boundary opens after the last step"
    for requested, done in zip(positions(entries, EvalRequested), positions(entries, EvalDone), strict=True):
        assert not any(requested < position < done for position, event in swings if event.target == "train"), "taken back too early"


def test_a_verdict_to_lend_goes_on_in_the_swing_of_the_evaluation() -> None:
    """One swing answers the boundary: it gives the devices back when both the evaluation and the verdict are satisfied."""
    entries = run_evaluating(standalone=(), policy_params={"deactivate_ratio": 1.0})
    lends = [event for event in of_kind(entries, SwitchStarted) if event.reason == "evaluation" and event.answers is not None]
    assert any(event.give_back_at > 0 for event in lends)
    assert not any(event.reason == "verdict" and event.target == "rollout" for event in of_kind(entries, SwitchStarted))


def test_with_both_kinds_a_standalone_replica_evaluates_and_takes_newer_weights_only_afterwards() -> None:
    entries = run_evaluating()
    assert {event.replica for event in of_kind(entries, EvalRequested)} == {"s0"}
    assert not any(event.reason == "evaluation" for event in of_kind(entries, SwitchStarted))


def test_an_evaluation_takes_no_sample_and_no_place_under_the_staleness_limit() -> None:
    without = run_plan(small_plan())
    entries = run_evaluating()
    assert len(of_kind(entries, SampleStarted)) <= len(of_kind(without, SampleStarted)) + 4
    samples = {event.sample for event in of_kind(entries, SampleStarted)}
    asked = [event for event in of_kind(entries, GenerationRequested) if event.evaluates is not None]
    assert asked
    assert not samples & {event.sample for event in asked}


# --- lost, late, stopped ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_a_replica_lost_while_it_is_pinned_is_replaced_by_another(how: str) -> None:
    faults = Faults(engine_script={("s0", "update"): how})
    for seed in range(20):
        entries = run_evaluating(seed, Faults(engine_script=dict(faults.engine_script)), standalone=("s0", "s1"), eval_every_versions=0)
        asked = [event.replica for event in of_kind(entries, EvalRequested)]
        if asked[0] == "s0" and len(asked) > 1:
            done = of_kind(entries, EvalDone)
            assert [(event.version, event.partial) for event in done] == [(0, False)] or of_kind(entries, DeadlineMissed)
            return
    raise AssertionError("s0 was never pinned first and lost")


def test_killed_at_every_moment_of_an_evaluation_the_answers_that_are_there_are_kept() -> None:
    again = 0
    for kind in ("EvalRequested", "GenerationFinished", "EvalScored"):
        for seed in range(12):
            entries = run_evaluating(
                seed, Faults(crashes=3, aimed={kind: 2}), standalone=("s0", "s1"), hybrid=(), policy="static_fully_async"
            )
            asked = [event.version for event in of_kind(entries, EvalRequested)]
            again += len(asked) > len(set(asked))
            scored = [(event.version, event.prompt) for event in of_kind(entries, EvalScored)]
            assert len(set(scored)) >= len(scored) - 3, "prompts are scored again and again"
    assert again, "nothing was ever lost while it was pinned"


@pytest.mark.parametrize("standalone", [(), ("s0",)], ids=["only hybrids", "standalone"])
@pytest.mark.parametrize("seed", range(10))
def test_an_evaluation_that_takes_too_long_ends_partial_and_the_run_goes_on(seed: int, standalone: tuple[str, ...]) -> None:
    faults = Faults(slow={f"eval-1-1.{answer}": 1 << 40 for answer in range(2)})
    entries = run_evaluating(seed, faults, standalone=standalone)
    assert of_kind(entries, RunEnded)[0].reason == "completed"
    missed = [event.key for event in of_kind(entries, DeadlineMissed) if event.key.startswith("eval:")]
    assert "eval:1" in missed
    done = {event.version: event for event in of_kind(entries, EvalDone)}
    assert done[1].partial
    assert done[1].num_prompts < 3
    aborted = [event for event in of_kind(entries, AbortRequested) if event.reason == "evaluation"]
    assert all(request.startswith("eval-1-") for event in aborted for request in event.requests)


def test_of_the_versions_that_come_due_meanwhile_the_newest_waits_and_the_others_are_said_to_be_skipped() -> None:
    entries = run_slowly(1, 1, 300, total_steps=16)
    done = {event.version: event for event in of_kind(entries, EvalDone)}
    published = [event.version for event in of_kind(entries, WeightsPublished)]
    assert sorted(done) == published
    assert not done[1].partial, "it was not let go on to its end"
    skipped = [version for version, event in done.items() if event.num_prompts == 0]
    assert skipped
    assert published[-1] not in skipped
    older = [event for event in of_kind(entries, EvalRequested) if event.version in skipped]
    assert not older


def run_slowly(every: int, version: int, until: int, **changes: object) -> list[Entry]:
    """One standalone replica evaluates a version until the log has so many entries, another one serves the training."""
    slow = {f"eval-{version}-{prompt}.{answer}": until for prompt in range(3) for answer in range(2)}
    alone = {"standalone": ("s0", "s1"), "hybrid": (), "policy": "static_fully_async"}
    return run_evaluating(0, Faults(slow=slow), eval_every_versions=every, **alone, **changes)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_is_stopped_does_not_wait_for_its_evaluation(seed: int) -> None:
    slow = {f"eval-{version}-0.0": 1 << 40 for version in range(4)}
    entries = run_evaluating(seed, Faults(stop=0.03, slow=slow), standalone=() if seed % 2 else ("s0",))
    assert of_kind(entries, RunEnded)[0].reason in ("stopped", "completed")
    stopped = positions(entries, StopRequested)[:1]
    for entry in entries:
        late = stopped and entry.position > stopped[0] and isinstance(entry.event, EvalRequested)
        assert not late or entry.cause < stopped[0], "an evaluation began after the stop"
    assert len(of_kind(entries, EvalDone)) == len({event.version for event in of_kind(entries, WeightsPublished)})


def test_devices_come_home_between_an_evaluation_and_the_next_step() -> None:
    entries = run_evaluating(standalone=(), policy="static_fully_async")
    for entry in entries:
        if isinstance(entry.event, EvalDone) and entry.event.version < 3:
            home = next(later.position for later in entries[entry.position :] if isinstance(later.event, SwitchDone))
            granted = next(later for later in entries[entry.position :] if isinstance(later.event, TrainGranted))
            assert home < granted.position
            assert granted.event.reason == "returned"  # type: ignore[attr-defined]


# --- a simulation that cannot find a bug would prove nothing ---------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def update_pinned_replicas(patch: pytest.MonkeyPatch) -> None:
    """The replica that evaluates is asked to take newer weights, and gets samples."""
    patch.setattr(Routes, "pin", lambda self, name: None)


def retire_weights_under_evaluation(patch: pytest.MonkeyPatch) -> None:
    """The trainer removes weights that are still to be loaded for an evaluation."""
    patch.setattr(Evaluations, "needed_uris", property(lambda self: set()))


PLANTS = [update_pinned_replicas, retire_weights_under_evaluation]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr("tests.simulation.world.MAX_TICKS", 5_000)
    assert any(fails(entries) for entries in range(240, 440, 20)), f"nobody found it: {plant.__doc__}"


def fails(entries: int) -> bool:
    """Whether a run breaks in which the evaluation of version 3 takes until the log has so many entries."""
    try:
        run_slowly(3, 3, entries, total_steps=24)
    except Exception:  # noqa: BLE001
        return True
    return False


def test_older_weights_are_loaded_again_for_an_evaluation_that_moves() -> None:
    """Somewhere among the seeds: newer weights are published, its replica is lost, and another takes those under evaluation."""
    for seed in range(SEEDS):
        newest = -1
        for entry in run_world(evaluating_world(seed)).store.entries:
            newest = max(newest, entry.event.version) if isinstance(entry.event, WeightsPublished) else newest
            if isinstance(entry.event, WeightUpdateRequested) and entry.event.version < newest:
                return
    raise AssertionError("no seed goes back: the simulation lost its teeth")
