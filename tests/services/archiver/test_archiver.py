"""The archiver on the log in memory: what it records, when it ends, and who may replace it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.entry import Draft, Producer
from bus.errors import DiskError, Fenced, GapError, LogError
from bus.events import (
    Event,
    PolicyAttached,
    PolicyDetached,
    ReplicaLost,
    RunEnded,
    ServiceLost,
    ServiceStarted,
    ServiceStopped,
)
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.recorder import Recorder
from bus.recording import Recording, Row
from bus.run_recorder import RunRecorder
from services.archiver.archiver import Archiver
from services.archiver.attendance import KINDS, Attendance
from tests.bus.factories import fact, plan, started, steps


class Run:
    """A log with its services, and an archiver that records it in a thread."""

    def __init__(self, folder: Path, grace_s: float = 30.0) -> None:
        self.folder = folder
        self.store = MemoryStore.create(plan("r"), at=0)
        self.log = MemoryLog(self.store)
        self.me = self.log.attach("archiver", fact(started())).producer
        self.reported: list[int] = []
        self.error: LogError | None = None
        self._grace_s = grace_s
        self._thread = threading.Thread(target=self._archive)

    def _archive(self) -> None:
        log = MemoryLog(self.store)
        try:
            with RunRecorder.open(self.folder, "r", log.log_id, MemoryBlobs(self.store)) as recorder:
                Archiver(log, recorder, self.me, Attendance(), self._grace_s, self.reported.append).run()
        except LogError as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> float:
        """Seconds until the archiver has ended."""
        began = time.monotonic()
        self._thread.join(20.0)
        assert not self._thread.is_alive()
        return time.monotonic() - began

    def say(self, producer: Producer, *events: Event) -> int:
        return self.log.append(producer, [Draft(event, derived=False, cause=0, at=1) for event in events])

    def recorded(self) -> list[int]:
        with Recording.open(self.folder) as recording:
            return [entry.position for entry in recording.entries()]

    def wait_until_recorded(self, position: int) -> None:
        deadline = time.monotonic() + 20.0
        while not self.reported or self.reported[-1] < position:
            assert time.monotonic() < deadline, f"recorded {self.reported[-1:]} of {position}"
            time.sleep(0.01)


def test_the_log_is_on_disk_before_the_janitor_is_told_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    trainer = run.log.attach("trainer", fact(started())).producer
    run.start()
    run.log.append(trainer, steps(1, 2500))
    run.wait_until_recorded(2503)
    assert run.recorded() == list(range(1, 2504))
    assert run.reported == sorted(run.reported)
    run.say(trainer, ServiceStopped(reason="done"))
    run.say(run.log.attach("controller", fact(started())).producer, RunEnded(reason="completed"), ServiceStopped(reason="done"))
    run.wait()
    assert run.error is None
    assert run.recorded() == [entry.position for entry in run.store.entries]


def test_a_busy_log_does_not_cost_a_commit_for_each_entry(tmp_path: Path) -> None:
    run = Run(tmp_path)
    trainer = run.log.attach("trainer", fact(started())).producer
    run.start()
    for step in range(100):
        run.log.append(trainer, steps(step, 1))
        time.sleep(0.005)
    run.wait_until_recorded(103)
    assert len(run.reported) <= 12
    run.say(trainer, RunEnded(reason="completed"), ServiceStopped(reason="done"))
    run.wait()


def test_the_last_words_of_everybody_are_recorded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    producers = [run.log.attach(source, fact(started())).producer for source in ("trainer", "controller", "replica:s0")]
    run.start()
    run.say(producers[1], RunEnded(reason="completed"), ServiceStopped(reason="done"))
    time.sleep(0.3)
    run.say(producers[2], ServiceStopped(reason="done"))
    time.sleep(0.3)
    last = run.say(producers[0], ServiceStopped(reason="done"))
    assert run.wait() < 5.0
    assert run.recorded()[-1] == last


def test_a_service_that_says_nothing_any_more_is_waited_for_until_the_grace_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, grace_s=1.0)
    run.log.attach("trainer", fact(started()))
    controller = run.log.attach("controller", fact(started())).producer
    run.start()
    run.say(controller, RunEnded(reason="completed"), ServiceStopped(reason="done"))
    assert 0.5 < run.wait() < 6.0
    assert "missing=trainer grace_s=1" in caplog.text
    assert run.recorded() == [1, 2, 3, 4, 5, 6]


def test_an_archiver_that_was_replaced_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    run.wait_until_recorded(2)
    run.log.attach("archiver", fact(started()))
    run.wait()
    assert isinstance(run.error, Fenced)
    assert run.recorded() == [1, 2]


def test_a_successor_goes_on_where_the_recording_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    trainer = run.log.attach("trainer", fact(started())).producer
    run.log.append(trainer, steps(1, 5))
    with Recorder.open(tmp_path, "r", run.store.log_id) as recorder:
        recorder.append(run.store.entries[:4])
    run.store.trim(4)
    run.start()
    run.wait_until_recorded(8)
    run.say(trainer, RunEnded(reason="completed"), ServiceStopped(reason="done"))
    run.wait()
    assert run.recorded() == list(range(1, 11))


def test_entries_that_were_trimmed_unrecorded_are_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.log.append(run.me, steps(1, 5))
    run.store.trim(3)
    run.start()
    run.wait()
    assert isinstance(run.error, GapError)


def attended(*said: tuple[str, Event]) -> Attendance:
    attendance, store = Attendance(), MemoryStore.create(plan("r"), at=0)
    epochs: dict[str, int] = {}
    for source, event in said:
        if isinstance(event, ServiceStarted | PolicyAttached):
            epochs[source] = epochs.get(source, 0) + 1
        store.write(source, epochs.get(source, 0), [fact(event)])
    for entry in store.entries:
        attendance.apply(entry)
    return attendance


START, STOP = ServiceStarted(code=""), ServiceStopped(reason="done")


def test_who_started_is_here_until_it_stops() -> None:
    assert attended(("trainer", START), ("rollouter", START), ("trainer", STOP)).here == {"rollouter": 1}


def test_a_policy_is_here_from_its_attachment_on() -> None:
    policy = PolicyAttached(name="default", params={}, mode="active", code="")
    assert attended(("policy", policy)).here == {"policy": 1}
    assert attended(("policy", policy), ("policy", PolicyDetached(name="default", reason="done"))).here == {}
    assert attended(("policy", policy), ("policy", STOP)).here == {}


def test_who_is_lost_and_restarted_is_still_expected() -> None:
    lost = ServiceLost(service="trainer", epoch=1, restarting=True)
    gone = ServiceLost(service="trainer", epoch=1, restarting=False)
    assert attended(("trainer", START), ("supervisor", lost)).here == {"trainer": 1}
    assert attended(("trainer", START), ("supervisor", gone)).here == {}
    assert attended(("trainer", START), ("trainer", START), ("supervisor", gone)).here == {"trainer": 2}


def test_a_replica_that_was_lost_is_not_expected() -> None:
    assert attended(("replica:s0", START), ("controller", ReplicaLost(replica="s0", epoch=1))).here == {}


def test_the_run_is_over_with_run_ended() -> None:
    assert not attended(("controller", START)).ended
    assert attended(("controller", RunEnded(reason="completed"))).ended
    assert {"RunEnded", "ServiceStarted", "ServiceStopped"} <= set(KINDS)


class FullDisk:
    """A recording whose disk takes nothing until it is told to."""

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self.full = True
        self.refused = 0

    @property
    def last_position(self) -> int:
        return self._recorder.last_position

    def append(self, rows: Sequence[Row]) -> None:
        if self.full and rows:
            self.refused += 1
            raise DiskError("the disk is full")
        self._recorder.append(rows)


class FullRun(Run):
    """A run whose archiver has a full disk. `turns` counts the janitor's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.disk: FullDisk | None = None
        self.turns = 0

    def _archive(self) -> None:
        log = MemoryLog(self.store)
        try:
            with RunRecorder.open(self.folder, "r", log.log_id, MemoryBlobs(self.store)) as recorder:
                self.disk = FullDisk(recorder)
                Archiver(log, self.disk, self.me, Attendance(), 1.0, self.reported.append, hindered=self._turn).run()
        except LogError as error:
            self.error = error

    def _turn(self, error: DiskError) -> None:
        self.turns += 1

    def wait_until_refused(self, times: int) -> FullDisk:
        deadline = time.monotonic() + 20.0
        while self.disk is None or self.disk.refused < times:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.disk


def test_an_archiver_whose_disk_is_full_goes_on_when_there_is_room_and_the_janitor_has_its_turn_meanwhile(tmp_path: Path) -> None:
    run = FullRun(tmp_path)
    run.log.append(run.me, steps(1, 5))
    run.start()
    disk = run.wait_until_refused(2)
    assert (run.reported, run.recorded()) == ([], [])
    assert run.turns > 0
    run.log.append(run.me, [*steps(6, 3), fact(RunEnded(reason="completed"))])
    disk.full = False
    run.wait()
    assert run.error is None
    assert run.recorded() == list(range(1, 12))


def test_an_archiver_whose_disk_is_full_still_ends_when_it_was_replaced(tmp_path: Path) -> None:
    run = FullRun(tmp_path)
    run.start()
    run.wait_until_refused(1)
    run.log.append(run.me, steps(1, 1500))
    run.log.attach("archiver", fact(started()))
    run.wait()
    assert isinstance(run.error, Fenced)


def test_an_observer_records_until_the_end_whoever_is_the_archiver(tmp_path: Path) -> None:
    run = Run(tmp_path / "own")
    trainer = run.log.attach("trainer", fact(started())).producer
    run.log.attach("archiver", fact(started()))
    run.say(trainer, RunEnded(reason="completed"), ServiceStopped(reason="done"))
    with RunRecorder.open(tmp_path / "other", "r", run.store.log_id, MemoryBlobs(run.store)) as recorder:
        Archiver(run.log, recorder, None, Attendance(), 0.1).run()
        assert recorder.last_position == 6
