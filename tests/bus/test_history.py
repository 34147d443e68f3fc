"""Late readers: what the server has forgotten comes from the recording, or through the archiver, without a gap and without a double."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from bus.connection import Connection
from bus.entry import Draft, Entry, Producer
from bus.errors import GapError, LogChanged
from bus.events import WaitSamples
from bus.history import History
from bus.keys import Keys
from bus.memory_log import MemoryLog, MemoryStore
from bus.recall import Recall, Recalling
from bus.recorder import Recorder
from bus.recording import FILE_NAME
from bus.redis_log import RedisLog
from bus.trimming import Trimming
from tests.bus.factories import fact, plan, steps

OPERATOR = Producer("operator", 0)


class Run:
    """A log in memory, and its recording."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore.create(plan("r"), at=0)
        self.log = MemoryLog(self.store)
        self.recorded = 0

    def say(self, count: int) -> None:
        self.log.append(OPERATOR, steps(1, count))

    def record(self) -> None:
        with Recorder.open(self.folder, "r", self.store.log_id) as recorder:
            entries = self.store.entries[recorder.last_position + 1 - self.store.first :]
            recorder.append(entries)
            self.recorded = recorder.last_position

    def trim(self, up_to: int) -> None:
        self.store.trim(up_to)

    def history(self) -> History:
        return History(MemoryLog(self.store), self.folder)


def read_to_the_end(history: History, after: int = 0, limit: int = 7) -> list[int]:
    positions: list[int] = []
    while entries := history.read(after, limit):
        positions += [entry.position for entry in entries]
        after = positions[-1]
    return positions


@pytest.fixture
def told(tmp_path: Path) -> Run:
    """Entries 1 to 51, of which 40 are recorded and the first 30 forgotten."""
    made = Run(tmp_path)
    made.say(39)
    made.record()
    made.say(11)
    made.trim(30)
    return made


def test_a_late_reader_gets_every_entry_once_from_the_recording_and_then_from_the_stream(told: Run) -> None:
    assert read_to_the_end(told.history()) == list(range(1, 52))
    assert read_to_the_end(told.history(), after=12) == list(range(13, 52))
    assert read_to_the_end(told.history(), limit=1) == list(range(1, 52))


def test_what_is_trimmed_while_a_reader_is_late_is_no_gap(told: Run) -> None:
    history = told.history()
    assert [entry.position for entry in history.read(0, 10)] == list(range(1, 11))
    told.record()
    told.trim(50)
    assert read_to_the_end(history, after=10) == list(range(11, 52))


def test_a_reader_that_goes_back_to_the_beginning_gets_it_again(told: Run) -> None:
    history = told.history()
    read_to_the_end(history)
    assert [entry.position for entry in history.read(0, 2)] == [1, 2]
    assert [entry.position for entry in history.read(5, 2)] == [6, 7]


def test_without_a_recording_a_gap_is_told_with_both_positions_and_where_was_looked(told: Run, tmp_path: Path) -> None:
    history = History(MemoryLog(told.store), tmp_path / "nowhere")
    with pytest.raises(GapError, match=r"has read up to 4, the next entry that is there is 31: .*nowhere has no recording"):
        history.read(4, 10)
    assert [entry.position for entry in history.read(30, 2)] == [31, 32]


def test_a_recording_that_ends_before_the_oldest_entry_of_the_stream_is_a_gap(told: Run) -> None:
    told.trim(45)
    history = told.history()
    with pytest.raises(GapError, match="has read up to 40, the next entry that is there is 46"):
        read_to_the_end(history)


def test_a_recording_of_another_log_is_refused(told: Run) -> None:
    other = MemoryStore.create(plan("r"), at=5)
    MemoryLog(other).append(OPERATOR, steps(1, 9))
    other.trim(6)
    with pytest.raises(LogChanged, match=rf"is of log {told.store.log_id}, the server has log {other.log_id}"):
        History(MemoryLog(other), told.folder).read(0, 5)


def test_a_changed_recording_is_found_before_anybody_builds_on_it(told: Run) -> None:
    with sqlite3.connect(told.folder / FILE_NAME) as connection:
        connection.execute("UPDATE entries SET at = at + 1 WHERE position = 12")
    connection.close()
    with pytest.raises(LogChanged, match="recorded entry 12 has chain"):
        read_to_the_end(told.history())


def test_a_stream_that_does_not_follow_on_the_recording_is_found_at_the_seam(told: Run, tmp_path: Path) -> None:
    other = MemoryStore(told.store.run, log_id=told.store.log_id)
    other.write("supervisor", 0, [fact(plan("r"), at=3)])
    other.write("operator", 0, steps(5, 50))
    other.trim(39)
    with pytest.raises(LogChanged, match="entry 40"):
        read_to_the_end(History(MemoryLog(other), told.folder))


def test_a_services_decisions_are_found_among_all_entries_wherever_they_are(tmp_path: Path) -> None:
    run = Run(tmp_path)
    trainer = run.log.attach("trainer", fact(WaitSamples(step=0, need=0, have=0))).producer
    for number in range(40):
        run.log.append(trainer, [Draft(WaitSamples(step=number, need=1, have=0), derived=number % 3 == 0, cause=1, at=1)])
        run.say(2)
        if number == 30:
            run.record()
            run.trim(60)
    everything = read_to_the_end(run.history())
    found = list(run.history().decisions("trainer", 0, everything[-1]))
    assert [step_of(entry) for entry in found] == list(range(0, 40, 3))
    assert [step_of(entry) for entry in run.history().decisions("trainer", found[4].position, found[9].position)] == [15, 18, 21, 24, 27]


def step_of(entry: Entry) -> int:
    assert isinstance(entry.event, WaitSamples)
    return entry.event.step


class Served:
    """A log on a server, recorded in a folder that only its archiver has."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        self.url, self.run, self.folder = url, run, folder
        with RedisLog.create(url, plan(run), at=1) as log:
            log.append(OPERATOR, steps(1, 3_000))
            with Recorder.open(folder, run, log.log_id) as recorder:
                while entries := log.read(recorder.last_position, 1000):
                    recorder.append(entries)
            log.append(OPERATOR, steps(1, 20))
            trimming = Trimming(url, run, log.log_id)
            trimming.trim(2_990)
            trimming.close()


@pytest.fixture
def elsewhere(redis_url: str, run: str, tmp_path: Path) -> Served:
    return Served(redis_url, run, tmp_path / "archived")


def test_a_reader_on_another_host_gets_what_was_forgotten_through_the_archiver(elsewhere: Served, tmp_path: Path) -> None:
    with Recalling(elsewhere.url, elsewhere.run, elsewhere.folder), History.open(elsewhere.url, elsewhere.run, tmp_path) as history:
        assert read_to_the_end(history, limit=700) == list(range(1, 3_022))


def test_several_readers_ask_at_once_and_each_gets_its_own_answer(elsewhere: Served) -> None:
    wrong: list[list[int]] = []

    def read(after: int) -> None:
        with History.open(elsewhere.url, elsewhere.run, None) as history:
            positions = read_to_the_end(history, after, limit=300)
            if positions != list(range(after + 1, 3_022)):
                wrong.append(positions)

    with Recalling(elsewhere.url, elsewhere.run, elsewhere.folder):
        threads = [threading.Thread(target=read, args=(after,)) for after in (0, 0, 100, 2_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_an_archiver_that_starts_after_the_question_answers_it(elsewhere: Served) -> None:
    answered: list[int] = []

    def read() -> None:
        with History.open(elsewhere.url, elsewhere.run, None) as history:
            answered.extend(entry.position for entry in history.read(0, 5))

    thread = threading.Thread(target=read)
    thread.start()
    connection = Connection(elsewhere.url)
    while not connection.call("EXISTS", Keys(elsewhere.run).recall):
        pass
    connection.close()
    with Recalling(elsewhere.url, elsewhere.run, elsewhere.folder):
        thread.join()
    assert answered == [1, 2, 3, 4, 5]


def test_without_an_archiver_the_gap_is_told_after_the_patience(elsewhere: Served) -> None:
    with (
        History.open(elsewhere.url, elsewhere.run, None, patience_s=0.2) as history,
        pytest.raises(GapError, match=r"has read up to 0, the next entry that is there is 2991: .*no archiver of run .* for 0\.2 s"),
    ):
        history.read(0, 10)


def test_a_question_that_makes_no_sense_and_a_recording_that_is_not_there_do_not_end_the_archiver(
    elsewhere: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection, recall = Connection(elsewhere.url), Recall(elsewhere.url, elsewhere.run, patience_s=10.0)
    with caplog.at_level(logging.WARNING), Recalling(elsewhere.url, elsewhere.run, tmp_path / "none"):
        connection.call("RPUSH", Keys(elsewhere.run).recall, b"\xc1 nonsense")
        with pytest.raises(GapError, match=r"the archiver cannot read its recording: .* is no recording"):
            recall.rows(0, 10)
    assert "asked in no way that is known" in caplog.text
    recall.close()
    connection.close()
