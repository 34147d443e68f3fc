"""The monitor follows a run from its first entry to its last, wherever its entries are."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from bus.entry import Draft, Entry, Producer
from bus.errors import GapError, LogMissing
from bus.events import RunEnded
from bus.history import History
from bus.memory_log import MemoryLog, MemoryStore
from bus.recorder import Recorder
from bus.redis_log import RedisLog
from services.monitor.reading import follow
from services.monitor.shell import watch
from tests.replay.recordings import simulated


def copy_of(entries: list[Entry]) -> MemoryStore:
    store = MemoryStore("r")
    for entry in entries:
        store.write(entry.source, entry.epoch, [Draft(entry.event, entry.derived, entry.cause, entry.at)])
    return store


def test_a_finished_run_is_followed_to_its_last_entry(tmp_path: Path) -> None:
    store = simulated(0).store
    assert list(follow(History(MemoryLog(store), tmp_path))) == store.entries


def test_a_run_is_followed_while_it_goes_on(tmp_path: Path) -> None:
    entries = simulated(0).store.entries
    store, seen = copy_of(entries[:20]), list[Entry]()
    thread = threading.Thread(target=lambda: seen.extend(follow(History(MemoryLog(store), tmp_path))))
    thread.start()
    for entry in entries[20:]:
        with store.grown:
            store.write(entry.source, entry.epoch, [Draft(entry.event, entry.derived, entry.cause, entry.at)])
            store.grown.notify_all()
    thread.join(20.0)
    assert not thread.is_alive()
    ended = next(entry.position for entry in entries if isinstance(entry.event, RunEnded))
    assert [entry.position for entry in seen] == list(range(1, len(seen) + 1))
    assert len(seen) >= ended


def test_what_the_server_has_forgotten_is_read_from_the_recording(tmp_path: Path) -> None:
    store = simulated(0).store
    entries = list(store.entries)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(entries[: len(entries) // 2])
    store.trim(len(entries) // 3)
    assert list(follow(History(MemoryLog(store), tmp_path))) == entries


def test_without_a_recording_a_forgotten_entry_is_a_gap(tmp_path: Path) -> None:
    store = simulated(0).store
    store.trim(5)
    with pytest.raises(GapError, match="entries 1 to 5 were trimmed"):
        list(follow(History(MemoryLog(store), tmp_path)))


def test_watching_a_run_shows_it_and_ends_with_its_summary(
    redis_url: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = simulated(0).store.entries
    plan = entries[0].event
    with RedisLog.create(redis_url, plan.model_copy(update={"run": run}), 0) as log:  # type: ignore[arg-type]
        log.append(Producer("supervisor", 0), [Draft(entry.event, entry.derived, entry.cause, entry.at) for entry in entries[1:]])
        began = time.monotonic()
        watch(redis_url, run, tmp_path)
    output = capsys.readouterr().out
    assert "the run ended" in output
    assert f"{run}, ended: " in output
    assert time.monotonic() - began < 10.0


def test_a_run_that_is_not_there_is_named(redis_url: str, tmp_path: Path) -> None:
    with pytest.raises(LogMissing, match="has no run 'nowhere'"):
        watch(redis_url, "nowhere", tmp_path)
