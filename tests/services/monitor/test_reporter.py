"""The monitor's own entries: one `Measured` a step, whoever watches and however often it starts anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bus.entry import Draft, Entry, Producer
from bus.errors import LogUnavailable
from bus.events import Event, Measured, RunEnded, ServiceStarted, ServiceStopped, StepDone
from bus.memory_log import MemoryLog, MemoryStore
from bus.redis_log import RedisLog
from replay.verify import verify
from services.config import MonitorConfig
from services.monitor.reporter import Reporter, Reporting
from services.monitor.summary import Summary
from services.monitor.trackers import Trackers
from tests.replay.recordings import simulated
from tests.simulation.check import SUBJECTS


def grown(entries: Sequence[Entry]) -> MemoryStore:
    store = MemoryStore("r")
    write(store, entries)
    return store


def write(store: MemoryStore, entries: Sequence[Entry]) -> None:
    for entry in entries:
        store.write(entry.source, entry.epoch, [Draft(entry.event, entry.derived, entry.cause, entry.at)])


class Watching:
    """A monitor that has read nothing yet."""

    def __init__(self, store: MemoryStore, trackers: Trackers | None = None) -> None:
        self._log = MemoryLog(store)
        self._position = 0
        self.summary = Summary()
        self.reporter = Reporter(self._log, trackers, clock=lambda: 0)

    def catch_up(self) -> None:
        while entries := self._log.read(self._position, 100):
            for entry in entries:
                self._position = entry.position
                self.summary.apply(entry)
                self.reporter.take(entry, self.summary)


def measured(store: MemoryStore) -> list[int]:
    return [entry.event.step for entry in store.entries if isinstance(entry.event, Measured)]


def words(store: MemoryStore) -> list[str]:
    return [entry.event.kind for entry in store.entries if entry.source == "monitor" and not isinstance(entry.event, Measured)]


def run_of(seed: int) -> tuple[list[Entry], int]:
    """A simulated run, and its steps."""
    entries = list(simulated(seed).store.entries)
    return entries, sum(isinstance(entry.event, StepDone) for entry in entries)


def test_each_step_is_measured_once_and_the_last_word_is_said_at_the_end() -> None:
    entries, steps = run_of(0)
    store = grown(entries[:1])
    watching = Watching(store)
    for start in range(1, len(entries), 7):
        write(store, entries[start : start + 7])
        watching.catch_up()
    assert measured(store) == list(range(1, steps + 1))
    assert words(store) == ["ServiceStarted", "ServiceStopped"]
    causes = {entry.event.step: store.entries[entry.cause - 1].event for entry in store.entries if isinstance(entry.event, Measured)}
    assert all(isinstance(cause, StepDone) and cause.step == step for step, cause in causes.items())


@pytest.mark.parametrize("cut", [20, 60, 100, 140])
def test_a_monitor_that_starts_anew_tells_what_is_missing_and_nothing_twice(cut: int, tmp_path: Path) -> None:
    entries, steps = run_of(0)
    store = grown(entries[:1])
    for part, end in ((1, cut), (cut, len(entries))):
        trackers = Trackers(MonitorConfig(), "r", tmp_path)
        watching = Watching(store, trackers)
        write(store, entries[part:end])
        watching.catch_up()
        trackers.close()  # as the end of its process does; no last word is said
    assert measured(store) == list(range(1, steps + 1))


def test_a_monitor_that_comes_late_tells_the_steps_of_the_past() -> None:
    entries, steps = run_of(0)
    store = grown(entries[:-30])
    Watching(store).catch_up()
    assert measured(store) == list(range(1, len(measured(store)) + 1))
    assert 0 < len(measured(store)) <= steps


def test_the_measures_of_a_step_are_the_same_whoever_computes_them() -> None:
    """They are a function of the log up to the end of the step; the monitor's own entries change nothing."""
    entries, _ = run_of(5)
    store = grown(entries[:1])
    live = Watching(store)
    for start in range(1, len(entries)):
        write(store, entries[start : start + 1])
        live.catch_up()
    late = grown(entries[:-1])
    Watching(late).catch_up()
    first, second = ([entry.event for entry in log.entries if isinstance(entry.event, Measured)] for log in (store, late))
    assert first == second
    assert first


def test_a_log_with_measures_verifies() -> None:
    entries, _ = run_of(0)
    store = grown(entries)
    Watching(store).catch_up()
    assert measured(store)
    assert verify(store.entries, SUBJECTS).passed


class DyingLog(MemoryLog):
    """Takes the first word and nothing more."""

    def append(self, producer: Producer, drafts: Sequence[Draft]) -> int:
        raise LogUnavailable("no answer")


class DyingTracker(Trackers):
    """Fails at the first step."""

    def log(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        raise RuntimeError("quota exceeded")


def test_what_cannot_be_told_is_said_and_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries, _ = run_of(0)
    reporter = Reporter(DyingLog(grown(entries[:1])), DyingTracker(MonitorConfig(), "r", tmp_path))
    summary = Summary()
    with caplog.at_level(logging.ERROR):
        for entry in entries:
            summary.apply(entry)
            reporter.take(entry, summary)
        reporter.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["nothing is tracked any more: it failed", "measures are not appended any more: it failed"]


def test_one_of_two_monitors_tells_and_one_that_comes_after_the_end_only_watches(redis_url: str, run: str, tmp_path: Path) -> None:
    entries, steps = run_of(0)
    plan = entries[0].event
    with RedisLog.create(redis_url, plan.model_copy(update={"run": run}), 0) as log:  # type: ignore[arg-type]

        def append(*parts: Event) -> None:
            log.append(Producer("supervisor", 0), [Draft(event, False, 0, 0) for event in parts])

        first = Reporting(redis_url, run, tmp_path, MonitorConfig())
        second = Reporting(redis_url, run, tmp_path / "other", MonitorConfig())
        log.append(Producer("supervisor", 0), [Draft(entry.event, entry.derived, 0, entry.at) for entry in entries[1:]])
        summaries = Summary(), Summary()
        position = 0
        while read := log.read(position, 500):
            for entry in read:
                position = entry.position
                for reporting, summary in zip((first, second), summaries, strict=True):
                    summary.apply(entry)
                    reporting.take(entry, summary)
        first.close()
        second.close()
        Reporting(redis_url, run, tmp_path, MonitorConfig()).close()
        told = [entry.event for entry in log.read(0, 1000) if entry.source == "monitor"]
    assert [type(event) for event in told] == [ServiceStarted, *[Measured] * steps, ServiceStopped]
    assert any(isinstance(entry.event, RunEnded) for entry in entries)
