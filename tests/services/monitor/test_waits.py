"""Who waits for what: one hand-written log for each wait, and what is a problem."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bus.events import (
    AbortRequested,
    CutRoutesRequested,
    DevicesYielded,
    EvalRequested,
    Event,
    KillRequested,
    OpenRoutesRequested,
    PolicyAttached,
    ReloadRequested,
    ReplicaAwake,
    ReplicaLost,
    RolloutPaused,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    RunPlanned,
    SampleStarted,
    ServiceLost,
    ServiceStarted,
    SleepRequested,
    Stalled,
    SwitchDone,
    SwitchRequested,
    TrainGranted,
    WaitSamples,
    WakeRequested,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
    YieldRequested,
)
from services.monitor.findings import problems_of
from services.monitor.situation import situation_of
from services.monitor.waits import deadlines, waits
from tests.services.monitor.logs import Story, batch, finished, give_back, lend, plan, ready, request, step_done

POLICY = PolicyAttached(name="default", params={}, mode="active", code="")


def opened(planned: RunPlanned | None = None) -> Story:
    """Everybody is there, boundary 0 is open since 10."""
    story = Story(planned)
    story.say("policy", 0.0, POLICY)
    update = WeightUpdateRequested(replica="s0", epoch=1, version=0, revision=0, uri="", digest="")
    applied = WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0)
    return story.open(10.0).rollouter(10.0, update).replica("s0", applied)


def granted(planned: RunPlanned | None = None) -> Story:
    """The trainer may train: nobody lends at boundary 0."""
    verdict = SwitchRequested(
        target="train", answers=0, amends=None, give_back_at=0, max_lent_s=0.0, reason="", evidence={}
    )  # fmt: skip
    return opened(planned).say("policy", 11.0, verdict).controller(12.0, TrainGranted(version=0, reason="verdict"))


def yielding() -> Story:
    """Swing 1 has begun."""
    return opened().controller(20.0, lend(1), YieldRequested(swing=1))


def waking() -> Story:
    """The trainer has left."""
    return yielding().trainer(DevicesYielded(swing=1, seconds=0.4)).controller(20.5, wake(1))


def cut() -> Story:
    """Routes are cut in swing 2, with a request in flight."""
    return lent().rollouter(24.0, request(0, "h0", swing=1)).controller(30.0, *CUT).rollouter(30.0, RoutesCut(swing=2))


def lent() -> Story:
    """Lent in swing 1 since 23."""
    story = waking()
    story.replica("h0", ReplicaAwake(replica="h0", swing=1, version=0, revision=0, seconds=0.0))
    story.controller(22.0, OpenRoutesRequested(swing=1, replicas=("h0",))).rollouter(22.0, RoutesOpened(swing=1, replicas=("h0",)))
    return story.controller(23.0, SwitchDone(swing=1, target="rollout", replicas=("h0",)))


def wake(swing: int) -> WakeRequested:
    return WakeRequested(replica="h0", epoch=1, swing=swing, version=0, revision=0, uri="", digest="")


def published(version: int) -> WeightsPublished:
    return WeightsPublished(version=version, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.0)


def said(story: Story) -> list[str]:
    """Each wait in one line, with the kind of the entry since which it is so."""
    return [
        f"{wait.who}: {wait.what} [{wait.since.event.kind if wait.since else '?'}] -> {wait.ends_with}"
        for wait in waits(situation_of(story.entries))
    ]


def test_before_the_start_the_controller_waits_for_whoever_is_missing() -> None:
    story = Story().controller(0.0, ServiceStarted(code="")).replica("s0", ServiceStarted(code="", role="standalone"))
    missing = "trainer, rollouter, policy, replica:s0 and 2 more"
    assert said(story) == [
        f"controller: the start of {missing} [RunPlanned] -> BoundaryOpened(0), once they are there",
        "replica s0: starting its engine [ServiceStarted] -> ReplicaAdded(s0)",
    ]


def test_an_open_boundary_waits_for_the_policy() -> None:
    assert said(opened()) == [
        "trainer: the decision on boundary 0 [BoundaryOpened] -> TrainGranted or SwitchStarted",
        "controller: the verdict on boundary 0 [BoundaryOpened] -> SwitchRequested(answers=0), from the policy",
        "policy: answering boundary 0 [BoundaryOpened] -> SwitchRequested(answers=0)",
    ]


def test_the_trainer_waits_for_samples_and_it_is_said_how_many_can_come() -> None:
    story = granted().trainer(WaitSamples(step=1, need=2, have=0)).rollouter(13.0, SampleStarted(sample=1, version=0))
    (wait,) = said(story)
    assert wait == "trainer: samples for step 1: 0 of 2 ready [TrainGranted] -> 2 more SampleReady: 2 in flight, 4 can be started"


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ((), "training step 1 [BatchFormed] -> StepDone(1)"),
        ((step_done(1), batch(2, 2, 3), step_done(2, is_boundary=True)), "publishing weights 1 [StepDone] -> WeightsPublished(1)"),
        (
            (step_done(1), batch(2, 2, 3), step_done(2, is_boundary=True), published(1)),
            "writing the checkpoint of step 2 [WeightsPublished] -> CheckpointSaved(2)",
        ),
    ],
)
def test_what_the_trainer_is_busy_with(told: tuple[Event, ...], line: str) -> None:
    story = granted().rollouter(13.0, *(SampleStarted(sample=n, version=0) for n in range(1, 4)), *(ready(n) for n in range(4)))
    assert f"trainer: {line}" in said(story.trainer(batch(1, 0, 1), *told))


def test_a_boundary_that_was_answered_waits_for_its_weights() -> None:
    story = granted().rollouter(13.0, *(SampleStarted(sample=n, version=0) for n in range(1, 4)), *(ready(n) for n in range(4)))
    story.trainer(batch(1, 0, 1), step_done(1), batch(2, 2, 3), step_done(2, is_boundary=True))
    verdict = SwitchRequested(target="train", answers=1, amends=None, give_back_at=0, max_lent_s=0.0, reason="", evidence={})
    lines = said(story.say("policy", 14.0, verdict))
    assert "controller: weights 1, before boundary 1 is decided [StepDone] -> WeightsPublished(1)" in lines


def test_while_the_devices_are_lent_it_is_said_when_they_come_back() -> None:
    story = lent().rollouter(24.0, request(0, "h0", swing=1))
    assert said(story) == [
        "trainer: its devices, lent in swing 1 [SwitchDone] -> 4 samples ready (now 0), or after 60 s",
        "replica h0: generating: 1 in flight, the oldest is 0.0 [GenerationRequested] -> GenerationFinished(0.0)",
    ]


LEND = "controller: swing 1 to rollout, phase"
BACK = "controller: swing 2 to train, phase"
CUT = (give_back(2), CutRoutesRequested(swing=2))
ABORT = AbortRequested(replica="h0", epoch=1, reason="swing", swing=2)
ASLEEP = SleepRequested(replica="h0", epoch=1, swing=2)


@pytest.mark.parametrize(
    ("story", "line"),
    [
        (yielding, f"{LEND} yield [YieldRequested] -> DevicesYielded(1), from the trainer"),
        (waking, f"{LEND} wake [WakeRequested] -> ReplicaAwake of h0"),
        (lambda: lent().controller(30.0, *CUT), f"{BACK} cut [CutRoutesRequested] -> RoutesCut(2), from the rollouter"),
        (lambda: cut().controller(31.0, ABORT), f"{BACK} abort [RoutesCut] -> GenerationFinished of 0.0 on h0"),
        (
            lambda: cut().replica("h0", finished(0, "h0", outcome="aborted")).controller(31.0, ABORT, ASLEEP),
            f"{BACK} sleep [SleepRequested] -> ReplicaAsleep of h0",
        ),
    ],
    ids=["yield", "wake", "cut", "abort", "sleep"],
)
def test_each_phase_of_a_swing_names_who_owes_what(story: Callable[[], Story], line: str) -> None:
    assert line in said(story())


def test_a_swing_back_that_waits_for_the_trainer() -> None:
    story = lent().controller(30.0, *CUT).rollouter(30.0, RoutesCut(swing=2)).controller(31.0, ABORT, ASLEEP)
    story.say("supervisor", 31.0, ServiceLost(service="replica:h0", epoch=1, restarting=False))
    story.controller(32.0, ReplicaLost(replica="h0", epoch=1), ReloadRequested(swing=2))
    lines = said(story)
    assert f"{BACK} reload [ReloadRequested] -> DevicesReloaded(2), from the trainer" in lines
    assert "trainer: coming back to its devices in swing 2 [ReloadRequested] -> DevicesReloaded(2)" in lines


def test_a_replica_that_loads_weights_or_evaluates_or_is_being_killed() -> None:
    update = WeightUpdateRequested(replica="s0", epoch=1, version=0, revision=0, uri="", digest="")
    story = granted().rollouter(13.0, update).trainer(batch(1)).rollouter(14.0, EvalRequested(version=0, replica="s0", epoch=1))
    lines = said(story.controller(15.0, KillRequested(replica="h0", epoch=1, reason="late")))
    assert "replica s0: loading weights 0 [WeightUpdateRequested] -> WeightsApplied(s0)" in lines
    assert "replica s0: evaluating version 0 [EvalRequested] -> EvalDone(0)" in lines
    assert "controller: the exit of replica h0, epoch 1 [KillRequested] -> ServiceLost(replica:h0), from the supervisor" in lines


@pytest.mark.parametrize(("reason", "words"), [("staleness", "room under the staleness limit"), ("memory", "memory of the log's server")])
def test_the_rollouter_says_why_it_starts_nothing(reason: str, words: str) -> None:
    story = granted().rollouter(13.0, RolloutPaused.model_validate({"reason": reason}))
    assert any(line.startswith(f"rollouter: {words} [RolloutPaused]") for line in said(story))


def test_rewards_that_are_not_there_yet_are_named() -> None:
    story = granted().rollouter(13.0, WeightUpdateRequested(replica="s0", epoch=1, version=0, revision=0, uri="", digest=""))
    story.replica("s0", WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0)).rollouter(14.0, request(0))
    story.replica("s0", finished(0).model_copy(update={"blob": ready(0).blob}))
    assert any(line == "rollouter: rewards of 1 sample [GenerationFinished] -> SampleReady or SampleDropped of 0" for line in said(story))


# --- deadlines -------------------------------------------------------------------------------------------------------------------


def test_deadlines_that_act_are_told_with_what_they_do_and_since_when_they_run() -> None:
    found = deadlines(situation_of(lent().rollouter(24.0, request(0)).entries))
    due = {item.key: (item.since.event.kind, item.seconds, item.then) for item in found}
    assert due["lent:1"] == ("SwitchDone", 60.0, "the devices go back")
    assert due["generate:s0:1:0"] == ("GenerationRequested", 900.0, "replica s0 is killed")
    verdict = {item.key: item.then for item in deadlines(situation_of(opened().entries))}
    assert verdict["verdict:0"] == "the trainer trains on without a verdict"


def test_a_controller_that_starts_anew_arms_its_deadlines_anew() -> None:
    story = lent().controller(50.0, ServiceStarted(code=""))
    (lend_due,) = (item for item in deadlines(situation_of(story.entries)) if item.key == "lent:1")
    assert lend_due.since is story.entries[-1]


# --- problems --------------------------------------------------------------------------------------------------------------------

ALIVE = {"trainer": 1, "rollouter": 1, "controller": 1, "policy": 0, "replica:s0": 1, "replica:h0": 1}


def problems(story: Story, alive: dict[str, int] | None = ALIVE, after_s: float = 1.0) -> list[str]:
    found = situation_of(story.entries)
    newest = max(entry.at for entry in story.entries if entry.source == "controller")
    for state in found.services.values():
        state.entry = state.entry._replace(at=newest)
    found.armed = {key: (entry._replace(at=newest), seconds) for key, (entry, seconds) in found.armed.items()}
    return problems_of(found, alive, newest + round(after_s * 1e9))


def test_a_run_that_goes_on_has_no_problem() -> None:
    assert problems(granted()) == []


def test_a_lost_controller_is_a_problem_and_what_that_means_is_said() -> None:
    alive = {name: epoch for name, epoch in ALIVE.items() if name != "controller"}
    (problem,) = problems(granted(), alive)
    assert problem.startswith("controller shows no sign of life (epoch 1): nobody decides about the devices")


def test_a_sign_of_life_of_an_older_incarnation_does_not_count() -> None:
    (problem,) = problems(granted(), ALIVE | {"trainer": 0})
    assert "trainer shows no sign of life (epoch 1)" in problem


def test_services_that_will_not_come_back_and_restarts_that_take_long_are_problems() -> None:
    lost = ServiceLost(service="trainer", epoch=1, restarting=False, detail="Traceback\nout of memory")
    assert problems(granted().say("supervisor", 13.0, lost))[0].startswith("trainer is lost and will not be restarted (out of memory)")
    restarting = lost.model_copy(update={"restarting": True})
    assert problems(granted().say("supervisor", 13.0, restarting)) == []
    assert "has not started again for 100 s" in problems(granted().say("supervisor", 13.0, restarting), after_s=100.0)[0]


def test_stalled_is_a_problem_until_something_moves() -> None:
    story = granted().controller(13.0, Stalled(have=1, need=2, waiting_on=("sample 3: 3.0 on s0",)))
    (problem,) = problems(story)
    assert "stalled since entry" in problem
    assert "1 of 2 samples are ready, waiting for sample 3: 3.0 on s0" in problem
    assert problems(story.rollouter(14.0, ready(0))) == []


def test_samples_that_cannot_come_are_a_problem() -> None:
    """Fewer than the samples of a step are left, and nobody has said that the prompts are exhausted."""
    (problem,) = problems(granted(plan(num_prompts=1)))
    assert "which cannot come by itself: 0 ready, 1 in flight and 0 startable are fewer than the 2 that a step needs" in problem


def test_a_deadline_that_is_long_past_and_was_not_said_is_a_problem() -> None:
    (problem,) = problems(opened(), after_s=60.0)
    assert problem == "deadline verdict:0 passed 55 s ago and the controller has not said so: it hangs, or clocks differ"


@pytest.mark.parametrize(("reason", "count"), [("completed", 0), ("stopped", 0), ("no_replicas", 1), ("failed", 1)])
def test_an_end_is_a_problem_unless_it_was_in_order(reason: str, count: int) -> None:
    story = granted().controller(99.0, RunEnded.model_validate({"reason": reason, "detail": "why"}))
    found = problems(story, None)
    assert len(found) == count
    assert said(story) == []
    assert all("why" in problem for problem in found)


def test_a_log_without_an_end_whose_server_is_gone_was_cut_off() -> None:
    (problem,) = problems(granted(), None)
    assert "the run was cut off" in problem
