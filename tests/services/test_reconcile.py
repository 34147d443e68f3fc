"""A recording and a server that do not agree: which history goes on, what is kept, and what those who knew the other one hear."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bus.blobs import blob_ref
from bus.embedded import EmbeddedServer
from bus.entry import Draft, Entry, Producer
from bus.errors import ConfigError, GapError, LogChanged
from bus.events import BlobRef, SampleReady
from bus.keys import Keys
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.run_recorder import RunRecorder
from bus.runs import run_keys
from bus.server_checks import connect
from bus.trimming import Trimming
from services.launcher.reconcile import reconcile
from tests.bus.factories import fact, generation, plan, started, steps

OPERATOR = Producer("operator", 0)


class Place:
    """A run with a log and a recording."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        self.url, self.run, self.folder = url, run, folder
        self.said: list[str] = []
        self.log = RedisLog.create(url, plan(run), at=1, patience_s=1)

    def append(self, first: int, count: int) -> None:
        self.log.append(OPERATOR, steps(first, count))

    def record(self) -> None:
        """Records all that the server has."""
        with (
            RedisLog.open(self.url, self.run) as log,
            closing(RedisBlobs(self.url, self.run)) as blobs,
            RunRecorder.open(self.folder, self.run, log.log_id, blobs) as recorder,
        ):
            while rows := log.read_rows(recorder.last_position, 100):
                recorder.append(rows)

    def reconcile(self) -> RedisLog:
        reconcile(self.folder, self.run, self.url, self.said.append)
        return RedisLog.open(self.url, self.run)

    def forget(self) -> None:
        """The server loses the run."""
        with closing(connect(self.url)) as connection:
            connection.call("DEL", *run_keys(connection, self.run))

    def recorded(self) -> list[Entry]:
        with Recording.open(self.folder) as recording:
            return list(recording.entries())

    def chains(self) -> list[str]:
        return [entry.chain for entry in self.recorded()]


@pytest.fixture
def place(server_url: str, run: str, tmp_path: Path) -> Place:
    return Place(server_url, run, tmp_path)


def goes_on(place: Place, log: RedisLog, position: int) -> bool:
    """What is appended now follows on entry `position`, and can be recorded."""
    assert log.last_position() == position
    assert log.append(OPERATOR, steps(900, 2)) == position + 1
    log.close()
    place.record()
    entries = place.recorded()
    return [entry.position for entry in entries] == list(range(1, position + 3))


def test_a_server_that_has_all_or_more_keeps_its_log(place: Place) -> None:
    place.append(1, 5)
    place.record()
    place.append(6, 3)
    with place.reconcile() as log:
        assert log.log_id == place.log.log_id
        assert place.said == []
        assert goes_on(place, log, 9)


def test_a_server_that_forgot_what_is_recorded_keeps_its_log(place: Place) -> None:
    place.append(1, 5)
    place.record()
    place.append(6, 3)
    with closing(Trimming(place.url, place.run, place.log.log_id)) as trimming:
        trimming.trim(6)
    with place.reconcile() as log:
        assert log.log_id == place.log.log_id
        assert goes_on(place, log, 9)


def test_an_empty_server_gets_a_new_log_with_the_recorded_history(place: Place) -> None:
    trainer = place.log.attach("trainer", fact(started())).producer
    place.log.append(trainer, [fact(generation("1.1", "a"))])
    place.append(1, 5)
    place.record()
    chains = place.chains()
    place.forget()
    with pytest.raises(LogChanged, match="the log is gone, this client knows it up to 8"):
        place.log.read(8, 10)
    with place.reconcile() as log:
        assert log.log_id != place.log.log_id
        assert "nothing of run" in place.said[0]
        assert place.chains() == chains
        assert [entry.chain for entry in log.read(0, 100)] == chains
        with pytest.raises(LogChanged, match=f"the log is {log.log_id}, this client knows {place.log.log_id}"):
            place.log.append(trainer, steps(50, 1))
        assert log.attach("trainer", fact(started())).producer.epoch == 3, "epochs are raised by one before the next is taken"
        assert goes_on(place, log, 9)
    with Recording.open(place.folder) as recording:
        assert recording.log_ids() == (place.log.log_id, recording.log_id)
        assert recording.log_id != place.log.log_id


def test_a_reader_of_a_log_made_anew_finds_what_is_older_only_in_the_recording(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.restoring.MOST_ENTRIES", 3)
    place.append(1, 9)
    place.record()
    place.forget()
    with place.reconcile() as log:
        assert [entry.position for entry in log.read(7, 10)] == [8, 9, 10]
        with pytest.raises(GapError, match="entries 1 to 7 were trimmed"):
            log.read(0, 10)


def test_a_log_that_went_another_way_gives_way_to_a_longer_recording_and_is_kept(place: Place) -> None:
    place.append(1, 8)
    place.record()
    chains = place.chains()
    fork(place, common=5, other=2)
    with place.reconcile() as log:
        assert "up to entry 5, and 2 entries of another one" in place.said[0]
        assert place.chains() == chains
        assert goes_on(place, log, 9)
    with closing(connect(place.url)) as connection:
        kept = [key for key in run_keys(connection, place.run) if ":log:" in key]
        assert connection.call("XLEN", kept[0]) == 2


def test_a_recording_gives_way_to_a_longer_log_and_is_kept(place: Place) -> None:
    place.append(1, 8)
    place.record()
    before = place.chains()
    fork(place, common=5, other=7)
    ref = ready_sample(place, 12)
    with place.reconcile() as log:
        assert "behind entry 5: the recording has 4 more, the server 8" in place.said[0]
        assert log.log_id != place.log.log_id
        assert place.chains()[:5] == before[:5]
        assert place.chains()[5:9] != before[5:9]
        assert goes_on(place, log, 13)
    (kept,) = place.folder.glob("events-*-9.sqlite")
    beside = place.folder / "kept"
    beside.mkdir()
    kept.rename(beside / "events.sqlite")
    with Recording.open(beside) as recording:
        assert [entry.chain for entry in recording.entries()] == before
    with PayloadRecording.open(place.folder) as payloads:
        assert payloads.get_ref(ref) == b"twelve"


def test_a_log_that_was_made_by_somebody_else_gives_way_to_the_recording(place: Place) -> None:
    place.append(1, 3)
    place.record()
    chains = place.chains()
    place.forget()
    with RedisLog.create(place.url, plan(place.run), at=2) as other:
        other.append(OPERATOR, steps(1, 20))
    with place.reconcile() as log:
        assert "none of the recorded history, and 21 entries of another one" in place.said[0]
        assert place.chains() == chains
        assert goes_on(place, log, 4)


def test_a_gap_between_recording_and_server_is_told(place: Place) -> None:
    place.append(1, 3)
    place.record()
    place.append(4, 6)
    with closing(Trimming(place.url, place.run, place.log.log_id)) as trimming:
        trimming.trim(7)
    with place.reconcile() as log:
        assert "the server's log ends at entry 10, the recording at 4" in place.said[0]
        assert goes_on(place, log, 4)


def test_a_log_whose_notes_do_not_fit_its_entries_is_made_anew_with_all_of_them(place: Place) -> None:
    place.append(1, 3)
    place.record()
    place.append(4, 2)
    with closing(connect(place.url)) as connection:
        connection.call("HSET", Keys(place.run).meta, "position", 77)
    with place.reconcile() as log:
        assert "damaged behind entry 4" in place.said[0]
        assert goes_on(place, log, 6)


def test_without_a_recording_a_whole_log_goes_on_and_a_trimmed_one_does_not(place: Place, tmp_path: Path) -> None:
    place.append(1, 5)
    with place.reconcile() as log:
        assert log.log_id == place.log.log_id
    with closing(Trimming(place.url, place.run, place.log.log_id)) as trimming:
        trimming.trim(2)
    with pytest.raises(ConfigError, match="only from entry 3 on: put the recording back"):
        place.reconcile()
    place.forget()
    with pytest.raises(ConfigError, match="there is nothing to go on with"):
        place.reconcile()


def test_a_log_whose_newest_entries_were_lost_with_the_end_of_the_servers_file_is_made_anew(run: str, tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "server")
    server.start()
    place = Place(server.url, run, tmp_path / "run")
    for number in range(1, 41):
        place.append(number, 1)
    reader = RedisLog.open(server.url, run, patience_s=5)
    assert reader.read(0, 100)[-1].position == 41
    place.record()
    chains = place.chains()
    server.close()
    (appended,) = (tmp_path / "server" / "appendonlydir").glob("*.incr.aof")
    cut = appended.read_bytes()[: -appended.stat().st_size // 4]
    appended.write_bytes(cut)
    server.start()
    try:
        with pytest.raises(LogChanged, match=r"the log ends at \d+, this client knows it up to 41: it was rolled back"):
            reader.read(41, 10, block_ms=100)
        with pytest.raises(LogChanged, match=r"the log ends at \d+, this client knows it up to 41: it was rolled back"):
            place.append(41, 1)
        with place.reconcile() as log:
            assert "it has the recorded history up to entry" in place.said[0]
            assert place.chains() == chains
            assert goes_on(place, log, 41)
    finally:
        reader.close()
        server.close()


def fork(place: Place, common: int, other: int) -> None:
    """The server's log is rolled back to entry `common`, and goes on with `other` entries of its own."""
    place.forget()
    log_id = place.log.log_id
    entries = place.recorded()
    with RedisLog.create(place.url, plan(place.run), at=1) as log, closing(connect(place.url)) as connection:
        drafts: Sequence[Draft] = [Draft(entry.event, entry.derived, entry.cause, entry.at) for entry in entries[1:common]]
        log.append(OPERATOR, drafts)
        log.append(OPERATOR, steps(500, other))
        connection.call("HSET", Keys(place.run).meta, "log", log_id)


def ready_sample(place: Place, position: int) -> BlobRef:
    """Appends an entry with a payload at `position`."""
    blobs = RedisBlobs(place.url, place.run)
    blobs.put("sample:12", b"twelve")
    with RedisLog.open(place.url, place.run) as log:
        ref = blob_ref("sample:12", b"twelve")
        ready = SampleReady(sample=12, num_tokens=3, oldest_version=0, newest_version=0, mean_reward=0.0, blob=ref)
        assert log.append(OPERATOR, [fact(ready)]) == position + 1
    blobs.close()
    return ref
