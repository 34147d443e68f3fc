"""The keeper of policy processes, with processes that do what a test says and a clock that it moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bus.entry import Draft, Entry, Producer
from bus.errors import Fenced
from bus.events import (
    DeadlineMissed,
    Event,
    PolicyAttached,
    PolicyDetached,
    PolicyRefused,
    PolicyRequested,
    ServiceLost,
    ShadowVerdict,
    SwitchRequested,
)
from bus.memory_log import MemoryLog, MemoryStore
from services.config import SupervisorConfig
from services.exit_codes import FAILED, FENCED
from services.launcher.keeper import HANG_S, Keeper
from services.launcher.protocol import Handle, RunPlace, ServiceSpec
from services.policy.roster import roster_of
from services.policy.trial import Trial
from tests.policies.logs import plan

KILLED = -9


class Process:
    """A handle that a test ends."""

    def __init__(self, spec: ServiceSpec, *, can_be_killed: bool = True) -> None:
        self.spec = spec
        self.code: int | None = None
        self.needs = ""
        self.can_be_killed = can_be_killed

    @property
    def chosen(self) -> ServiceSpec:
        """What it is, whichever incarnation."""
        return replace(self.spec, token="")

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None: ...

    def kill(self) -> bool:
        if self.can_be_killed:
            self.code = KILLED
        return self.can_be_killed

    def waits_for(self) -> str:
        return self.needs

    def how_it_ended(self) -> str:
        return f"signal {-(self.code or 0)}" if (self.code or 0) < 0 else f"exit code {self.code}"


class Run:
    """A log, a keeper on it, and the processes that it started."""

    def __init__(self, folder: Path, *, in_process: bool = False, says_losses: bool = True) -> None:
        self.store = MemoryStore.create(plan(), at=0)
        self.log = MemoryLog(self.store)
        self.folder = folder
        self.now = 0.0
        self.position = 0
        self.started: list[Process] = []
        self._in_process = in_process
        self._says_losses = says_losses
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Keeper:
        config = SupervisorConfig(max_restarts=2, first_delay_s=1, candidate_s=5)
        roster = roster_of(self.store.entries)
        return Keeper(
            RunPlace("", "r", self.folder), self, config, roster, self.say, self.drain, lambda: self.now, says_losses=self._says_losses
        )

    def spawn(self, spec: ServiceSpec) -> Handle:
        self.started.append(Process(spec, can_be_killed=not self._in_process))
        return self.started[-1]

    def say(self, event: Event, cause: int, source: str) -> None:
        self.log.append(Producer("supervisor" if self._says_losses else source, 0), [Draft(event, derived=False, cause=cause or 1, at=0)])

    def drain(self) -> None:
        for entry in self.log.read(self.position, 10_000):
            self.position = entry.position
            self.keeper.take(entry)

    def turn(self, seconds: float = 0.0) -> None:
        """Time passes, and the supervisor's loop turns twice: what it says is read, too."""
        self.now += seconds
        for _ in range(2):
            self.drain()
            self.keeper.look()

    def attach(self, process: Process) -> int:
        """A process says its first word; returns its epoch."""
        spec = process.spec
        mode = "shadow" if spec.name else "active"
        asked = self.store.entries[spec.request - 1].event if spec.request else None
        label = spec.name or (asked.label if isinstance(asked, PolicyRequested) and asked.action == "promote" else "")
        event = {"name": "default", "params": {}, "mode": mode, "code": "", "request": spec.request, "label": label, "token": spec.token}
        return self.log.attach(spec.source, Draft(PolicyAttached.model_validate(event), False, 0, 0), spec.after).producer.epoch

    def ask(self, action: str, label: str = "") -> int:
        event = PolicyRequested.model_validate({"action": action, "name": "default", "label": label})
        return self.log.append(Producer("operator", 0), [Draft(event, False, 0, 0)])

    def write(self, source: str, epoch: int, event: Event, *, derived: bool = False) -> None:
        self.store.write(source, epoch, [Draft(event, derived=derived, cause=1, at=0)])

    def events(self, kind: type[Event]) -> list[Event]:
        return [entry.event for entry in self.store.entries if isinstance(entry.event, kind)]

    @property
    def newest(self) -> Process:
        return self.started[-1]

    @property
    def last(self) -> Entry:
        return self.store.entries[-1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose first policy has attached."""
    made = Run(tmp_path)
    made.keeper.begin()
    made.attach(made.newest)
    made.turn()
    return made


def swapped(run: Run) -> tuple[Process, Process]:
    """(old one, newcomer) after a swap."""
    old = run.newest
    run.ask("swap")
    run.turn()
    run.attach(run.newest)
    run.turn()
    return old, run.newest


def shadowed(run: Run, label: str = "a") -> Process:
    run.ask("shadow", label)
    run.turn()
    run.attach(run.newest)
    run.turn()
    return run.newest


def verdict(answers: int) -> SwitchRequested:
    fields = {"target": "train", "answers": answers, "amends": None, "give_back_at": 0, "max_lent_s": 0.0, "reason": "", "evidence": {}}
    return SwitchRequested.model_validate(fields)


def refusals(run: Run) -> list[tuple[str, str]]:
    return [(event.stage, event.detail) for event in run.events(PolicyRefused) if isinstance(event, PolicyRefused)]


def losses(run: Run) -> list[tuple[str, int, bool]]:
    return [(event.service, event.epoch, event.restarting) for event in run.events(ServiceLost) if isinstance(event, ServiceLost)]


def test_the_end_of_one_that_was_replaced_is_no_loss_and_no_restart(run: Run) -> None:
    old, new = swapped(run)
    assert new.chosen == ServiceSpec("policy", request=3, candidate=True)
    old.code = FENCED
    run.turn(100.0)
    assert losses(run) == []
    assert len(run.started) == 2


def test_one_that_was_replaced_and_does_not_end_is_killed(run: Run) -> None:
    old, _ = swapped(run)
    run.turn(100.0)
    assert old.code == KILLED
    assert losses(run) == []


def test_after_a_swap_the_newcomer_is_what_is_restarted_and_never_the_plans(run: Run) -> None:
    _, new = swapped(run)
    new.code = FAILED
    run.turn()
    assert losses(run) == [("policy", 2, True)]
    assert len(run.started) == 2, "restarts wait"
    run.turn(1.0)
    assert run.newest.chosen == ServiceSpec("policy", request=3)


def test_a_candidate_that_ends_is_refused_with_what_it_said(run: Run) -> None:
    run.ask("swap")
    run.turn()
    trial = Trial(run.folder, 3)
    trial.at("answer", 2)
    trial.fails("verdict raised")
    run.newest.code = FAILED
    run.turn()
    assert refusals(run) == [("answer", "verdict raised")]
    assert (run.last.source, run.last.cause) == ("supervisor", 3)
    assert losses(run) == []
    run.turn(100.0)
    assert len(run.started) == 2, "nothing is tried again"


def test_a_candidate_that_does_not_get_on_is_killed_and_one_that_does_has_more_time(run: Run) -> None:
    run.ask("swap")
    run.turn()
    trial = Trial(run.folder, 3)
    for position in range(10):
        trial.at("warm_up", position)
        Trial(run.folder, 3).at("warm_up", position + 1)
        run.turn(4.0)
    assert run.newest.code is None
    run.turn(5.5)
    assert run.newest.code == KILLED
    assert refusals(run) == [("warm_up", "it was not ready within 5 s (supervisor.candidate_s), at entry 10, and was killed")]


def test_a_candidate_that_waits_for_a_place_does_not_stand_still_and_does_not_wait_for_ever(run: Run) -> None:
    run.ask("swap")
    run.turn()
    run.newest.needs = "a node with 1 CPU"
    run.turn(50.0)
    assert run.newest.code is None
    run.turn(51.0)
    detail = "it was not ready within 100 s (supervisor.candidate_s), for it waited for a node with 1 CPU, and was killed"
    assert [words for _, words in refusals(run)] == [detail]


def test_a_candidate_that_attached_before_it_ended_was_swapped_in_and_is_lost(run: Run) -> None:
    run.ask("swap")
    run.turn()
    run.attach(run.newest)
    run.newest.code = FAILED
    run.turn()
    assert refusals(run) == []
    assert losses(run) == [("policy", 2, True)]


def test_requests_are_carried_out_one_after_the_other_a_shadow_beside_them(run: Run) -> None:
    run.ask("swap")
    run.ask("swap")
    run.ask("shadow")
    run.turn()
    assert [process.spec.request for process in run.started] == [0, 3, 5]
    run.attach(run.started[1])
    run.turn()
    assert [process.spec.request for process in run.started] == [0, 3, 5, 4]


def test_one_that_is_lost_is_started_again_beside_a_candidate_and_may_only_follow_what_it_was(run: Run) -> None:
    active = run.newest
    run.ask("swap")
    run.turn()
    candidate = run.newest
    active.code = FAILED
    run.turn()
    run.turn(1.0)
    again = run.newest
    assert again.chosen == ServiceSpec("policy", after=1), "it does not wait for the candidate, which may take minutes"
    run.attach(candidate)
    with pytest.raises(Fenced):
        run.attach(again)
    again.code = FENCED
    run.turn()
    run.turn(100.0)
    assert (losses(run), run.keeper.given_up, len(run.started)) == ([("policy", 1, True)], None, 3)


def test_one_that_came_back_beside_a_candidate_is_replaced_by_it(run: Run) -> None:
    active = run.newest
    run.ask("swap")
    run.turn()
    candidate = run.newest
    active.code = FAILED
    run.turn()
    run.turn(1.0)
    run.attach(run.newest)
    run.turn()
    run.attach(candidate)
    run.newest.code = FENCED
    run.turn()
    assert run.keeper.children["policy"].handle is candidate
    assert run.keeper.given_up is None


def test_one_that_was_to_follow_another_and_was_fenced_by_its_own_predecessor_is_started_again(run: Run) -> None:
    run.newest.code = FAILED
    run.ask("swap")
    run.turn()
    candidate = run.newest
    run.turn(1.0)
    run.newest.code = FENCED
    candidate.code = FAILED
    run.turn()
    assert run.keeper.given_up is None
    run.turn(2.0)
    assert run.newest.chosen == ServiceSpec("policy")


def test_the_late_first_word_of_one_that_was_lost_is_not_taken_for_its_successors(run: Run) -> None:
    """As when the cluster has lost a node that lives on for a moment."""
    run.newest.code = FAILED
    run.turn()
    run.turn(1.0)
    lost = run.newest
    lost.code = KILLED
    run.turn()
    run.turn(2.0)
    assert run.attach(lost) == 2
    run.turn()
    assert run.keeper.children["policy"].epoch == 0
    assert run.attach(run.newest) == 3
    run.turn()
    assert run.keeper.children["policy"].epoch == 3
    run.newest.code = FAILED
    run.turn()
    assert losses(run) == [("policy", 1, True), ("policy", 0, True), ("policy", 3, False)]


def test_no_two_incarnations_have_one_token(run: Run) -> None:
    swapped(run)
    shadowed(run)
    run.newest.code = FAILED
    run.turn()
    run.turn(1.0)
    tokens = [process.spec.token for process in run.started]
    assert len(set(tokens)) == len(tokens) == 4
    assert all(tokens)


def test_a_candidate_waits_for_one_that_is_being_started(run: Run) -> None:
    run.newest.code = FAILED
    run.turn()
    run.turn(1.0)
    run.ask("swap")
    run.turn()
    assert len(run.started) == 2


def test_a_policy_that_says_nothing_after_its_deadline_hangs_and_is_killed_and_restarted(run: Run) -> None:
    active = run.newest
    run.write("policy", 1, verdict(0), derived=True)
    run.write("controller", 1, DeadlineMissed(key="verdict:1", seconds=5.0))
    run.turn(HANG_S / 2)
    assert active.code is None
    run.turn(HANG_S)
    assert active.code == KILLED
    assert losses(run) == [("policy", 1, True)]
    assert "it let a boundary's deadline pass, said nothing after it, and was killed: signal 9" in str(run.last.event)
    run.turn(1.0)
    assert run.newest is not active
    run.attach(run.newest)
    run.write("controller", 1, DeadlineMissed(key="verdict:2", seconds=5.0))
    run.turn()
    run.turn(19.0)
    assert run.newest.code is None, "it may still be reading a long log"
    run.turn(2.0)
    assert run.newest.code == KILLED


def test_a_policy_that_was_only_late_is_left_alone(run: Run) -> None:
    run.write("controller", 1, DeadlineMissed(key="verdict:1", seconds=5.0))
    run.turn()
    run.write("policy", 1, verdict(1), derived=True)
    run.turn(100.0)
    assert run.newest.code is None


def test_a_shadow_that_lets_a_boundary_pass_hangs_and_one_that_answers_does_not(run: Run) -> None:
    hung, good = shadowed(run, "hung"), shadowed(run, "good")
    for label in ("hung", "good"):
        run.write(f"policy:{label}", 1, ShadowVerdict(**verdict(0).model_dump()), derived=True)
    run.write("policy:good", 1, ShadowVerdict(**verdict(1).model_dump()), derived=True)
    run.write("policy", 1, verdict(1), derived=True)
    run.turn()
    late = shadowed(run, "late")
    run.write("controller", 1, DeadlineMissed(key="verdict:1", seconds=5.0))
    run.turn(HANG_S + 0.1)
    assert (hung.code, good.code, late.code) == (KILLED, None, None)
    assert losses(run) == [("policy:hung", 1, True)]


def test_a_policy_that_crashes_again_and_again_is_given_up_until_another_is_swapped_in(run: Run) -> None:
    for _ in range(3):
        run.newest.code = FAILED
        run.turn()
        run.turn(5.0)
        if run.newest.code is None:
            run.attach(run.newest)
            run.turn()
    assert [restarting for *_, restarting in losses(run)] == [True, True, False]
    assert run.keeper.given_up == FAILED
    swapped(run)
    assert run.keeper.given_up is None
    assert run.newest.code is None


def test_labels_are_made_unique_and_a_taken_one_is_refused(run: Run) -> None:
    for _ in range(2):
        run.ask("shadow")
        run.turn()
        run.attach(run.newest)
        run.turn()
    assert [process.spec.source for process in run.started] == ["policy", "policy:default", "policy:default-2"]
    run.ask("shadow", "default")
    run.ask("shadow", "no/label")
    run.ask("promote", "nobody")
    run.ask("detach", "nobody")
    run.turn()
    assert [detail.partition(":")[0] for _, detail in refusals(run)] == [
        "there is a shadow 'default' already",
        "'no/label' cannot be a label",
        "there is no shadow 'nobody'",
        "there is no shadow 'nobody'",
    ]


def test_a_shadow_that_was_promoted_or_let_go_is_not_restarted(run: Run) -> None:
    a, b = shadowed(run, "a"), shadowed(run, "b")
    run.ask("promote", "a")
    run.ask("detach", "b")
    run.turn()
    run.attach(run.newest)
    run.turn()
    a.code = FAILED
    run.write("policy:b", 1, PolicyDetached(name="default", reason="asked to end"))
    b.code = 0
    run.turn(100.0)
    assert losses(run) == [("policy:a", 1, False)]
    assert [process.spec.source for process in run.started] == ["policy", "policy:a", "policy:b", "policy"]


def test_a_shadow_that_is_let_go_while_it_is_down_is_lost_for_good(run: Run) -> None:
    shadowed(run, "a").code = FAILED
    run.turn()
    run.ask("detach", "a")
    run.turn(100.0)
    assert losses(run) == [("policy:a", 1, True), ("policy:a", 1, False)]
    assert run.keeper.roster.open == {}
    assert len(run.started) == 2


def test_a_new_keeper_starts_the_newest_active_one_the_shadows_and_what_is_still_open(run: Run) -> None:
    swapped(run)
    shadowed(run, "a")
    open_request = run.ask("shadow", "b")
    run.keeper, run.position, run.started = run.new_keeper(), len(run.store.entries), []
    run.keeper.begin()
    assert [process.chosen for process in run.started] == [ServiceSpec("policy", request=3), ServiceSpec("policy", "a", request=5)]
    for process in list(run.started):
        run.attach(process)
    run.turn()
    assert run.newest.chosen == ServiceSpec("policy", "b", request=open_request, candidate=True)


def test_what_cannot_be_killed_is_not_refused_while_it_lives(tmp_path: Path) -> None:
    run = Run(tmp_path, in_process=True)
    run.keeper.begin()
    run.attach(run.newest)
    run.ask("swap")
    run.turn()
    run.turn(100.0)
    assert refusals(run) == []
    run.attach(run.newest)
    run.turn()
    assert run.keeper.roster.active is not None
    assert run.keeper.roster.active.epoch == 2


def test_where_a_controller_says_who_is_lost_a_shadow_that_is_given_up_detaches(tmp_path: Path) -> None:
    run = Run(tmp_path, says_losses=False)
    run.keeper.begin()
    run.attach(run.newest)
    run.turn()
    shadowed(run, "a")
    for _ in range(3):
        run.newest.code = FAILED
        run.turn()
        run.turn(5.0)
        if run.newest.code is None:
            run.attach(run.newest)
            run.turn()
    assert losses(run) == []
    assert (run.last.source, run.last.event.kind) == ("policy:a", "PolicyDetached")
