"""A recording keeps a log as it was appended, refuses what does not follow, and says what is wrong with a file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from bus import chain
from bus.entry import Entry
from bus.errors import CodecError, ConfigError, GapError, LogChanged, LogError
from bus.memory_log import MemoryLog, MemoryStore
from bus.recorder import Recorder
from bus.recording import FILE_NAME, Recording, Row
from tests.bus.factories import fact, plan, started, steps


def log_of(count: int, run: str = "r") -> MemoryStore:
    """A log with a plan, a start, and `count` steps."""
    store = MemoryStore.create(plan(run), at=5)
    log = MemoryLog(store)
    producer = log.attach("trainer", fact(started())).producer
    log.append(producer, steps(1, count))
    return store


def record(folder: Path, store: MemoryStore) -> Recorder:
    with Recorder.open(folder, store.run, store.log_id) as recorder:
        recorder.append(store.entries[recorder.last_position :])
    return recorder


def change(folder: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_entries_come_back_as_they_were_appended(tmp_path: Path) -> None:
    store = log_of(5)
    recorder = record(tmp_path, store)
    assert (recorder.last_position, recorder.last_chain) == (7, store.entries[-1].chain)
    with Recording.open(tmp_path) as recording:
        assert (recording.run, recording.log_id) == ("r", store.log_id)
        assert list(recording.entries()) == store.entries
        assert recording.entry(3) == store.entries[2]
        assert recording.last_position() == 7
        assert recording.meta()[2:] == (7, store.entries[-1].chain)


def test_rows_carry_the_chain_from_their_own_bytes(tmp_path: Path) -> None:
    record(tmp_path, log_of(20))
    previous = chain.GENESIS
    with Recording.open(tmp_path) as recording:
        for row in recording.rows():
            assert row.link(previous) == row.chain
            previous = row.chain


def test_a_recorder_goes_on_where_its_predecessor_ended(tmp_path: Path) -> None:
    store = log_of(3)
    record(tmp_path, store)
    MemoryLog(store).attach("rollouter", fact(started()))
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        assert recorder.last_position == 5
        recorder.append(store.entries[5:])
    with Recording.open(tmp_path) as recording:
        assert list(recording.entries()) == store.entries


def test_rows_can_be_chosen_by_position_kind_and_source(tmp_path: Path) -> None:
    record(tmp_path, log_of(5))
    with Recording.open(tmp_path) as recording:
        assert [row.position for row in recording.rows(2, 4)] == [2, 3, 4]
        assert [row.position for row in recording.rows(kinds=["ServiceStarted", "RunPlanned"])] == [1, 2]
        assert [row.position for row in recording.rows(3, kinds=["StepDone"], sources=["trainer"])] == [3, 4, 5, 6, 7]
        assert list(recording.rows(kinds=["StepDone"], sources=["policy"])) == []


def test_a_gap_is_refused_with_both_positions(tmp_path: Path) -> None:
    store = log_of(5)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(store.entries[:3])
        with pytest.raises(GapError, match="ends at entry 3, the next one to record is 5"):
            recorder.append(store.entries[4:])
        assert recorder.last_position == 3
        recorder.append(store.entries[3:])


def test_an_entry_twice_is_refused(tmp_path: Path) -> None:
    store = log_of(5)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(store.entries[:3])
        with pytest.raises(GapError, match="ends at entry 3, the next one to record is 3"):
            recorder.append(store.entries[2:])


def test_another_log_of_the_same_run_is_refused(tmp_path: Path) -> None:
    first, second = log_of(2), log_of(2)
    record(tmp_path, first)
    with pytest.raises(LogChanged, match=f"records log {first.log_id} of run 'r', not log {second.log_id}"):
        Recorder.open(tmp_path, second.run, second.log_id)


def test_a_log_that_was_rolled_back_and_went_on_is_refused(tmp_path: Path) -> None:
    store, other = log_of(4), log_of(4)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(store.entries[:4])
        forked: list[Entry] = [entry._replace(chain=f"{entry.chain[:-1]}x") for entry in other.entries[4:]]
        with pytest.raises(LogChanged, match=r"entry 5 has chain .* rolled back"):
            recorder.append(forked)
        assert recorder.last_position == 4


def test_two_recorders_of_one_file_do_not_mix(tmp_path: Path) -> None:
    store = log_of(4)
    with Recorder.open(tmp_path, store.run, store.log_id) as old, Recorder.open(tmp_path, store.run, store.log_id) as new:
        new.append(store.entries[:3])
        with pytest.raises(LogError, match="ends at entry 3, this recorder left it at 0: somebody else writes"):
            old.append(store.entries[:2])
        new.append(store.entries[3:])
    with Recording.open(tmp_path) as recording:
        assert list(recording.entries()) == store.entries


def test_a_batch_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    store = log_of(4)
    record(tmp_path, log_of(0))
    change(tmp_path, "DELETE FROM meta WHERE key = 'log_id'")
    change(tmp_path, "INSERT INTO meta VALUES ('log_id', ?)", store.log_id)
    change(tmp_path, "UPDATE meta SET value = '0' WHERE key = 'last_position'")
    change(tmp_path, "UPDATE meta SET value = '' WHERE key = 'last_chain'")
    change(tmp_path, "DELETE FROM entries WHERE position = 1")
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        with pytest.raises(LogError, match=r"entries 1 to 6 cannot be written to .*UNIQUE"):
            recorder.append(store.entries)
        assert recorder.last_position == 0
    with Recording.open(tmp_path) as recording:
        assert [row.position for row in recording.rows()] == [2]


def test_a_recording_is_read_while_it_grows(tmp_path: Path) -> None:
    store = log_of(4)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(store.entries[:2])
        with Recording.open(tmp_path) as recording:
            assert recording.last_position() == 2
            rows = recording.rows()
            assert next(rows).position == 1
            recorder.append(store.entries[2:])
            assert [row.position for row in rows] == [2]
            assert [row.position for row in recording.rows()] == [1, 2, 3, 4, 5, 6]


def test_what_a_killed_recorder_said_was_recorded_is_there(tmp_path: Path) -> None:
    killed = """
import os, sys, signal
from pathlib import Path
from bus.recorder import Recorder
from tests.bus.test_recording import log_of
store = log_of(300)
recorder = Recorder.open(Path(sys.argv[1]), store.run, store.log_id)
for position in range(0, 300, 3):
    recorder.append(store.entries[position : position + 3])
    print(recorder.last_position, flush=True)
    if recorder.last_position == 150:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    said = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False)
    assert said.stdout.split()[-1] == "150"
    with Recording.open(tmp_path) as recording:
        assert [row.position for row in recording.rows()] == list(range(1, 151))
        assert recording.meta().last_position == 150


def test_commits_are_synchronous_and_in_wal_mode(tmp_path: Path) -> None:
    store = log_of(2)
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.append(store.entries)
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size > 0
        connection = sqlite3.connect(tmp_path / FILE_NAME)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    record(tmp_path, log_of(4))
    before = (tmp_path / FILE_NAME).read_bytes()
    with Recording.open(tmp_path) as recording:
        assert len(list(recording.rows())) == 6
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} is no recording: it has no events.sqlite"):
        Recording.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"hello" * 1000, b"SQLite format 3\0" + b"\0" * 5000])
def test_a_file_that_is_no_recording_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(LogError, match=r"events.sqlite is damaged, or no recording"):
        Recording.open(tmp_path)


def test_a_database_of_somebody_else_is_named(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE meta(key TEXT, value TEXT)")
    with pytest.raises(ConfigError, match="its table meta has no format, run, log_id"):
        Recording.open(tmp_path)
    with pytest.raises(ConfigError, match="its table meta has no format, run, log_id"):
        Recorder.open(tmp_path, "r", "id")


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    record(tmp_path, log_of(1))
    change(tmp_path, "UPDATE meta SET value = '2' WHERE key = 'format'")
    with pytest.raises(ConfigError, match="has format 2, this version of swingshift reads format 1"):
        Recording.open(tmp_path)


def test_a_truncated_file_is_told_with_the_last_entry_that_could_be_read(tmp_path: Path) -> None:
    record(tmp_path, log_of(400))
    path = tmp_path / FILE_NAME
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(LogError, match=r"events.sqlite is damaged"), Recording.open(tmp_path) as recording:
        list(recording.rows())


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be opened for writing"):
        Recorder.open(tmp_path / "file" / "run", "r", "id")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("kind = 'Nonsense'", "entry 3 cannot be read: entry of unknown kind 'Nonsense'"),
        ("version = 9", "entry 3 cannot be read: StepDone has schema 9"),
        ("body = x'c1'", "entry 3 cannot be read: the body of a StepDone"),
        ("body = 'text'", "entry 3 cannot be read: its body is 'text', bytes is expected"),
        ("at = 'noon'", "entry 3 cannot be read: its at is 'noon', int is expected"),
        ("derived = 2", "entry 3 cannot be read: its derived is 2, 0 or 1 is expected"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path, assignment: str, message: str) -> None:
    record(tmp_path, log_of(4))
    change(tmp_path, f"UPDATE entries SET {assignment} WHERE position = 3")
    with Recording.open(tmp_path) as recording, pytest.raises(CodecError, match=message):
        list(recording.entries())


def test_an_entry_that_is_not_there_is_a_gap(tmp_path: Path) -> None:
    record(tmp_path, log_of(1))
    with Recording.open(tmp_path) as recording, pytest.raises(GapError, match="has no entry 4: it has those up to 3"):
        recording.entry(4)


def test_a_recording_in_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    """Root may write anywhere: a process that is root becomes nobody first."""
    record(tmp_path, log_of(4))
    read = """
import os, sys
from pathlib import Path
from bus.recording import Recording
folder = Path(sys.argv[1])
os.chdir(folder)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
assert not os.access(folder, os.W_OK)
with Recording.open(Path(".")) as recording:
    print(sum(1 for _ in recording.entries()))
"""
    tmp_path.chmod(0o555)
    (tmp_path / FILE_NAME).chmod(0o444)
    parents = [parent for parent in tmp_path.parents if parent.stat().st_mode & 0o777 == 0o700]
    try:
        for parent in parents:
            parent.chmod(0o711)
        done = subprocess.run([sys.executable, "-c", read, str(tmp_path)], capture_output=True, text=True, check=False)
    finally:
        for folder, mode in [(tmp_path, 0o755), *((parent, 0o700) for parent in parents)]:
            folder.chmod(mode)
    assert (done.stdout.strip(), done.stderr) == ("6", "")


def test_a_row_is_the_entry_it_stores() -> None:
    for entry in log_of(3).entries:
        assert Row.of(entry).entry() == entry


def test_a_recording_goes_on_in_the_log_that_was_made_from_it_and_keeps_the_names_of_the_former_ones(tmp_path: Path) -> None:
    store = log_of(3)
    with Recorder.open(tmp_path, "r", store.log_id) as recorder:
        recorder.append(store.entries[:3])
        for log_id in ("second", "second", "third"):
            recorder.adopt(log_id)
        recorder.append(store.entries[3:])
    with Recording.open(tmp_path) as recording:
        assert recording.log_ids() == (store.log_id, "second", "third")
        assert recording.log_id == "third"
        assert list(recording.entries()) == store.entries
    with pytest.raises(LogChanged, match="records log third"):
        Recorder.open(tmp_path, "r", "second")


def test_a_recording_that_was_begun_without_snapshots_gets_their_table(tmp_path: Path) -> None:
    store = log_of(3)
    record(tmp_path, store)
    change(tmp_path, "DROP TABLE snapshots")
    change(tmp_path, "DROP INDEX entries_by_kind")
    record(tmp_path, store)
    change(tmp_path, "INSERT INTO snapshots(source, code, position, state) VALUES ('trainer', 'abc', 3, x'00')")
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND name = 'entries_by_kind'").fetchone() is not None
    connection.close()


def test_entries_are_stored_as_they_stand_in_the_log_whoever_wrote_them(tmp_path: Path) -> None:
    """A body of an older schema, or with a field less, is another body than this version would write: its bytes are kept."""
    swapped = msgpack.packb({"have": 2, "need": 8, "step": 1})
    store = log_of(0)
    rows = [Row.of(entry) for entry in store.entries]
    odd = Row(3, "WaitSamples", 1, "trainer", 1, 0, 0, 1, "", swapped)
    rows.append(odd._replace(chain=odd.link(rows[-1].chain)))
    with Recorder.open(tmp_path, store.run, store.log_id) as recorder:
        recorder.check(rows)
        recorder.append_rows(rows)
    assert rows[-1] != Row.of(rows[-1].entry())
    with Recording.open(tmp_path) as recording:
        assert list(recording.rows()) == rows
