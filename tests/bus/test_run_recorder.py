"""A run is recorded whole: payloads before the entries that name them, in bounded portions, and what is gone is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bus.blobs import MOST_TOGETHER, TOGETHER_BYTES, blob_ref, put_blob
from bus.errors import LogChanged, LogError
from bus.events import KINDS, BlobRef, Event, GenerationFinished, SampleReady
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.payload_recording import PayloadRecording
from bus.recording import Recording, Row
from bus.redis_blobs import RedisBlobs
from bus.run_recorder import MOST_BYTES, NAMING, RunRecorder, payload_of
from tests.bus.factories import fact, plan, steps


def finished(number: int, blob: BlobRef | None) -> GenerationFinished:
    return GenerationFinished(
        request=f"{number}.0", attempt=1, replica="s0", outcome="stop", num_tokens=1, version_spans=((0, 1),), blob=blob
    )


def ready(number: int, blob: BlobRef) -> SampleReady:
    return SampleReady(sample=number, num_tokens=1, oldest_version=0, newest_version=0, mean_reward=0.0, blob=blob)


class Run:
    """A log in memory with payloads, and what is asked of its server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore.create(plan("r"), at=0)
        self.log = MemoryLog(self.store)
        self.blobs = MemoryBlobs(self.store)
        self.asked: list[list[str]] = []
        self.recorded_when_asked: list[int] = []
        self.payloads_when_asked: list[int] = []

    def get_refs(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        self.asked.append([ref.name for ref in refs])
        with Recording.open(self.folder) as recording:
            self.recorded_when_asked.append(recording.last_position())
        self.payloads_when_asked.append(len(self.payloads()))
        return self.blobs.get_refs(refs)

    def say(self, *events: Event) -> None:
        self.store.write("x", 0, [fact(event) for event in events])

    def sample(self, number: int) -> None:
        self.say(ready(number, put_blob(self.blobs, f"sample:{number}", b"sample %d" % number)))

    def rows(self, after: int = 0) -> list[Row]:
        return self.log.read_rows(after, 10_000)

    def record(self) -> None:
        with RunRecorder.open(self.folder, "r", self.store.log_id, self) as recorder:
            recorder.append(self.rows(recorder.last_position))

    def payloads(self) -> dict[str, bytes]:
        with PayloadRecording.open(self.folder) as recording:
            return {name: recording.get(name) for name in recording.names()}


@pytest.fixture
def told(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_payloads_of_entries_are_recorded_before_these_are(told: Run) -> None:
    told.say(finished(0, put_blob(told.blobs, "answer:0.0.1", b"answer")), finished(1, None))
    told.sample(0)
    told.record()
    assert told.payloads() == {"answer:0.0.1": b"answer", "sample:0": b"sample 0"}
    assert told.recorded_when_asked == [0]
    told.sample(1)
    told.record()
    assert told.recorded_when_asked == [0, 4]
    assert told.asked == [["answer:0.0.1", "sample:0"], ["sample:1"]]


def test_who_is_killed_between_payloads_and_entries_is_succeeded_without_a_gap(told: Run) -> None:
    told.sample(0)
    with (
        RunRecorder.open(told.folder, "r", told.store.log_id, told) as recorder,
        closing(sqlite3.connect(told.folder / "events.sqlite")) as other,
    ):
        with other:
            other.execute("UPDATE meta SET value = '7' WHERE key = 'last_position'")
        with pytest.raises(LogError, match="somebody else writes to it"):
            recorder.append(told.rows())
        with other:
            other.execute("UPDATE meta SET value = '0' WHERE key = 'last_position'")
    assert list(told.payloads()) == ["sample:0"]
    told.blobs.delete(["sample:0"])
    told.record()
    with Recording.open(told.folder) as recording:
        assert recording.last_position() == 2
    assert told.payloads() == {"sample:0": b"sample 0"}


def test_a_payload_that_is_gone_or_another_one_is_named_and_its_entry_recorded(told: Run, caplog: pytest.LogCaptureFixture) -> None:
    told.sample(0)
    told.say(ready(1, blob_ref("sample:1", b"gone")), ready(2, blob_ref("sample:2", b"mine")))
    told.blobs.put("sample:2", b"not mine")
    told.record()
    assert told.payloads() == {"sample:0": b"sample 0"}
    assert "payloads are gone, their entries are recorded without them: positions=1-4 payloads=sample:1,sample:2" in caplog.text
    with Recording.open(told.folder) as recording:
        assert recording.last_position() == 4


def test_what_is_fetched_at_a_time_is_bounded_by_size_and_number(told: Run) -> None:
    large, huge = (blob_ref("large", b"x").model_copy(update={"num_bytes": size}) for size in (TOGETHER_BYTES - 10, MOST_BYTES))
    told.say(ready(0, large), ready(1, blob_ref("a", b"a" * 11)), ready(2, huge))
    told.say(*(ready(number, blob_ref(f"{number}", b"x")) for number in range(3, 4 + MOST_TOGETHER)))
    told.record()
    assert [len(names) for names in told.asked] == [1, 1, 1, MOST_TOGETHER, 1]


def test_what_is_committed_at_a_time_is_bounded_by_size_and_number(told: Run) -> None:
    told.sample(0)
    for number in range(1, 4):
        ref = put_blob(told.blobs, f"sample:{number}", b"sample %d" % number)
        told.say(ready(number, ref.model_copy(update={"num_bytes": MOST_BYTES // 2})))
    told.sample(4)
    told.record()
    assert told.asked == [[f"sample:{number}"] for number in range(5)]
    assert told.payloads_when_asked == [0, 0, 2, 2, 4]


def test_the_payloads_of_a_log_that_went_on_differently_replace_nothing(told: Run) -> None:
    told.sample(0)
    told.record()
    other = Run(told.folder)
    other.say(ready(0, put_blob(other.blobs, "sample:0", b"other")), ready(1, put_blob(other.blobs, "sample:1", b"other")))
    with RunRecorder.open(told.folder, "r", told.store.log_id, other) as recorder, pytest.raises(LogChanged):
        recorder.append(other.rows(recorder.last_position))
    assert other.asked == []
    assert told.payloads() == {"sample:0": b"sample 0"}


def test_entries_without_payloads_ask_nobody(told: Run) -> None:
    told.store.write("trainer", 1, steps(1, 300))
    told.record()
    assert told.asked == []


def test_every_payload_that_an_event_can_name_is_recorded_once() -> None:
    naming = {
        (kind, name)
        for kind, model in KINDS.items()
        for name, field in model.model_fields.items()
        if "BlobRef" in str(field.annotation)
    }  # fmt: skip
    assert naming == {("GenerationFinished", "blob"), ("SampleReady", "blob"), ("GenerationRequested", "prefix")}
    assert set(NAMING) == {"GenerationFinished", "SampleReady"}
    ref = blob_ref("a", b"a")
    assert [payload_of(event) for event in (finished(0, ref), finished(0, None), ready(0, ref))] == [ref, None, ref]


def test_many_payloads_come_from_a_server_in_one_answer(server_url: str, run: str) -> None:
    with closing(RedisBlobs(server_url, run)) as blobs:
        for name in ("a", "b", "c"):
            blobs.put(name, name.encode())
        blobs.delete(["b"])
        assert blobs.get_many(["a", "b", "c", "d"]) == {"a": b"a", "c": b"c"}
        assert blobs.get_many([]) == {}


def test_a_run_that_is_copied_while_it_is_recorded_has_every_payload_that_its_entries_name(told: Run, tmp_path: Path) -> None:
    """Events first: what is recorded between the two copies has payloads that no copied entry names, and not the other way round."""
    told.sample(0)
    told.record()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("events.sqlite", "payloads.sqlite"):
        with closing(sqlite3.connect(told.folder / name)) as source, closing(sqlite3.connect(copy / name)) as target:
            source.backup(target)
        told.sample(1)
        told.record()
    with Recording.open(copy) as recording, PayloadRecording.open(copy) as payloads:
        refs = [ref for entry in recording.entries() if (ref := payload_of(entry.event)) is not None]
        assert [payloads.get_ref(ref) for ref in refs] == [b"sample 0"]
        assert len(payloads.names()) == 2
