"""C-11: SIGKILL of everybody, aimed and blind, in a real run; the long version is `python -m benchmarks.chaos`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.chaos_checks import check
from benchmarks.chaos_kills import AIMS, EVERYTHING, FIRST_AIM, REDIS, WEIGHTS, Aim, Kill, plan_kills
from benchmarks.chaos_run import Attack
from benchmarks.chaos_shapes import make_shape
from bus.events import KINDS, StepDone
from services.config import RunConfig

KILLS = (
    FIRST_AIM,
    Kill("rollouter", Aim("SampleReady"), 0.0, waits=False),
    Kill("archiver", Aim("BatchFormed"), 0.0, waits=True),
    Kill(REDIS, Aim("WeightsPublished"), 0.0, waits=False),
    Kill(EVERYTHING, Aim("SampleStarted"), 0.0, waits=True),
    Kill("controller", Aim("TrainGranted"), 0.0, waits=True),
)
"""Each at another arrow; some while the victim before is not back yet."""
SHAPE = 0
"""One standalone and one hybrid replica, and nothing that drops a sample."""
PACE = {"seconds_per_step": 0.15, "tokens_per_second": 400, "shortest_answer": 4, "longest_answer": 24}
"""So that the run goes on until its last kill."""


def test_c11_no_prompt_is_skipped_or_trained_twice_whoever_is_killed(tmp_path: Path) -> None:
    """And lengths are unbiased: what was not trained is only what was still on its way when the run ended."""
    shape = make_shape("scripted", seed=0, number=SHAPE, kills=3)
    shape = replace(shape, config={**shape.config, "scripted": PACE})
    fired = Attack(tmp_path, "c11", shape, KILLS, lambda _: None).carry_out()
    ledger = check(fired, shape)
    assert len(fired.kills) == len(KILLS)
    assert fired.resumes == 1
    assert ledger.plan is not None
    assert not ledger.dropped
    assert ledger.taken - ledger.trained <= ledger.plan.cycle_samples * (1 + ledger.plan.staleness_threshold)


def test_a_seed_determines_who_is_killed_when_and_in_which_run() -> None:
    plans = [plan_kills(7, number, 10, ("s0", "h0")) for number in range(40)]
    assert plans == [plan_kills(7, number, 10, ("s0", "h0")) for number in range(40)]
    assert all(FIRST_AIM in plan for plan in plans), "every run has a kill between StepDone and WeightsPublished"
    targets = {kill.target.partition(":")[0] for plan in plans for kill in plan}
    assert targets == set(WEIGHTS)
    assert {kill.aim for plan in plans for kill in plan if kill.aim} == set(AIMS)
    assert {kill.target for kill in plan_kills(7, 0, 10, ("s0",), ("redis",))} == {"redis"}


def test_every_aim_names_an_event_and_its_fields() -> None:
    for aim in AIMS:
        assert {name for name, _ in aim.fields} <= set(KINDS[aim.kind].model_fields)
    done = StepDone(step=1, version=0, is_boundary=True, num_samples=1, seconds={}, metrics={})
    assert FIRST_AIM.aim is not None
    assert FIRST_AIM.aim.hit(done)
    assert not FIRST_AIM.aim.hit(done.model_copy(update={"is_boundary": False}))


def test_every_shape_is_a_configuration() -> None:
    for kind in ("scripted", "model"):
        for number in range(30):
            shape = make_shape(kind, 1, number, 10)
            config = RunConfig.model_validate(shape.config)
            assert (*config.replicas.standalone_names, *config.replicas.hybrid_names) == shape.replicas
