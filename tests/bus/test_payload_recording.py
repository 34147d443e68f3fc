"""Recorded payloads come back as they were, and one that is not as it was is named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bus.blobs import blob_digest, blob_ref, get_blob
from bus.errors import BlobMissing, ConfigError, DiskError, LogError
from bus.payload_recording import FILE_NAME, PayloadRecorder, PayloadRecording
from tests.disks import largest_file

TEXT = b"tokens and log-probabilities, again and again; " * 50


def record(folder: Path, **items: bytes) -> None:
    with PayloadRecorder.open(folder) as recorder:
        recorder.put(items)


def change(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.execute(statement, values)


def test_payloads_come_back_as_they_were_by_name_and_by_reference(tmp_path: Path) -> None:
    record(tmp_path, a=TEXT, empty=b"")
    record(tmp_path, b=b"x")
    with PayloadRecording.open(tmp_path) as recording:
        assert recording.names() == ["a", "b", "empty"]
        assert [recording.get(name) for name in ("a", "b", "empty")] == [TEXT, b"x", b""]
        assert recording.get_ref(blob_ref("a", TEXT)) == get_blob(recording, blob_ref("a", TEXT)) == TEXT


def test_they_lie_compressed_with_their_digest_and_size(tmp_path: Path) -> None:
    record(tmp_path, a=TEXT)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        digest, num_bytes, stored = connection.execute("SELECT digest, num_bytes, length(zstd) FROM payloads").fetchone()
    assert (digest, num_bytes) == (blob_digest(TEXT), len(TEXT))
    assert stored < num_bytes / 10


def test_a_payload_that_is_recorded_again_replaces_the_one_before(tmp_path: Path) -> None:
    record(tmp_path, a=b"first")
    with PayloadRecorder.open(tmp_path) as recorder:
        assert (recorder.digest("a"), recorder.digest("b")) == (blob_digest(b"first"), None)
        recorder.put({"a": b"second"})
    with PayloadRecording.open(tmp_path) as recording:
        assert recording.get("a") == b"second"
        with pytest.raises(BlobMissing, match=r"payload 'a' has digest .* the log recorded .* replaced or damaged"):
            recording.get_ref(blob_ref("a", b"first"))


def test_a_payload_that_is_not_there_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    with PayloadRecording.open(tmp_path) as recording, pytest.raises(BlobMissing, match=r"payload 'sample:1' is not in .*payloads.sqlite"):
        recording.get("sample:1")


@pytest.mark.parametrize(
    "assignment", ["zstd = x'00'", "zstd = x'28b52ffd'", "zstd = 'text'", "digest = 'abc'", "num_bytes = 3", "num_bytes = 'many'"]
)
def test_a_payload_that_was_changed_is_named(tmp_path: Path, assignment: str) -> None:
    record(tmp_path, a=TEXT, b=TEXT)
    change(tmp_path, f"UPDATE payloads SET {assignment} WHERE name = 'a'")
    with PayloadRecording.open(tmp_path) as recording:
        with pytest.raises(BlobMissing, match=r"payload 'a' in .* is damaged"):
            recording.get("a")
        assert recording.get("b") == TEXT


def test_a_payload_that_was_replaced_by_another_whole_one_is_found_by_its_reference(tmp_path: Path) -> None:
    record(tmp_path, a=TEXT, b=b"other")
    change(tmp_path, "DELETE FROM payloads WHERE name = 'a'")
    change(tmp_path, "UPDATE payloads SET name = 'a'")
    with PayloadRecording.open(tmp_path) as recording, pytest.raises(BlobMissing, match="replaced or damaged"):
        recording.get_ref(blob_ref("a", TEXT))


def test_a_folder_without_payloads_a_foreign_file_and_a_newer_format_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} has no recorded payloads: it has no payloads.sqlite"):
        PayloadRecording.open(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"hello" * 1000)
    with pytest.raises(LogError, match="is damaged, or no recording"):
        PayloadRecording.open(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    record(tmp_path, a=TEXT)
    change(tmp_path, "PRAGMA user_version=2")
    for opened in (PayloadRecording.open, PayloadRecorder.open):
        with pytest.raises(ConfigError, match="has format 2, this version of swingshift reads format 1"):
            opened(tmp_path)


def test_payloads_are_recorded_all_or_none_and_a_disk_that_is_full_may_have_room_later(tmp_path: Path) -> None:
    record(tmp_path, a=TEXT)
    more = {f"{number}": number.to_bytes(4, "big") * 50_000 + bytes(range(256)) for number in range(3)}
    more["large"] = b"".join(blob_digest(b"%d" % number).encode() for number in range(4_000))
    with PayloadRecorder.open(tmp_path) as recorder:
        with largest_file(50_000), pytest.raises(DiskError, match=r"4 payloads cannot be written to .*payloads.sqlite: .*are free there"):
            recorder.put(more)
        with PayloadRecording.open(tmp_path) as recording:
            assert recording.names() == ["a"]
        recorder.put(more)
    with PayloadRecording.open(tmp_path) as recording:
        assert {name: recording.get(name) for name in recording.names()} == {"a": TEXT, **more}


def test_what_a_killed_recorder_said_was_recorded_is_there(tmp_path: Path) -> None:
    killed = """
import os, sys, signal
from pathlib import Path
from bus.payload_recording import PayloadRecorder
recorder = PayloadRecorder.open(Path(sys.argv[1]))
for number in range(10):
    recorder.put({f"{number}": b"x" * number})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    assert done.returncode == -9
    with PayloadRecording.open(tmp_path) as recording:
        assert [recording.get(f"{number}") for number in range(10)] == [b"x" * number for number in range(10)]


def test_payloads_are_read_while_more_are_recorded(tmp_path: Path) -> None:
    with PayloadRecorder.open(tmp_path) as recorder:
        recorder.put({"a": TEXT})
        with PayloadRecording.open(tmp_path) as recording:
            recorder.put({"b": b"b"})
            assert recording.get("b") == b"b"
