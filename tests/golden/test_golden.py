"""Recordings that were made once and stay: what this version reads, decides again, and finds wrong.

A golden recording is useful in two ways, and both outlive the code that made it.

- It can be read: its file, its schema, its chain, its invariants, its books. This holds for all of them and for ever.
- It can be decided again. `replay verify` compares with the code that made it only as long as the digests agree, which the next change
  of a core ends; then it lists differences apart. These tests ask for more: for recordings in `as_today` the cores of this checkout decide
  exactly as recorded, whatever their digest. A change of a core that changes no decision passes; one that does fails here, and it is to be
  looked at: if it is meant, the recording moves to `other_code` and a new one takes its place (tests/golden/make.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgpack
import pytest
from typer.testing import CliRunner, Result

from bus import codec
from bus.entry import Entry
from bus.errors import CodecError
from bus.events import KINDS, PolicyAttached, ServiceStarted, SwitchRequested, WaitSamples
from bus.recorder import Recorder
from bus.recording import Recording, Row
from replay.cli import app
from replay.recorded import verify_recording
from replay.subjects import subjects
from tests.golden.files import PACKED, golden, unpack
from tests.golden.make import missing_words
from tests.replay.recordings import change_body, execute, forge_chain, positions
from tests.simulation.check import check_books

MOST_BYTES = 200_000
AS_TODAY, OTHER_CODE, KNOWN_BAD, WORDS = map(golden, ("as_today", "other_code", "known_bad", "words"))
MEANT = (
    "this checkout decides otherwise than {name} recorded. Not meant? Then a core lost something. Meant? Look at each difference above, "
    "`git mv` the recording to recordings/other_code under a name that says what it is of, and `python -m tests.golden.make {name}`"
)
UPCASTER = "{kind} of schema {version} can no longer be read as it was: raise its schema_version and add an upcaster to bus/codec.py"


def named(packed: Path) -> str:
    return f"{packed.parent.name}/{packed.name}"


def packed_as(name: str) -> Path:
    (packed,) = [packed for packed in AS_TODAY if packed.name == name]
    return packed


def entries_of(folder: Path) -> list[Entry]:
    with Recording.open(folder) as recording:
        return list(recording.entries())


def rows_of(folder: Path) -> list[Row]:
    with Recording.open(folder) as recording:
        return list(recording.rows())


def keeps(before: object, after: object) -> bool:
    """Everything that was there is there with the same value; there may be more, with a default."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(name in after and keeps(value, after[name]) for name, value in before.items())
    return before == after


def stamp(folder: Path) -> None:
    """Lets the recording say that the code of this checkout made it, with a chain that fits."""
    codes = {subject.source: subject.code for subject in subjects()}
    for entry in entries_of(folder):
        if isinstance(entry.event, ServiceStarted | PolicyAttached) and entry.source in codes:
            code = codes[entry.source](entry.event if isinstance(entry.event, PolicyAttached) else None)
            change_body(folder, entry.position, lambda body, code=code: body.update(code=code))  # type: ignore[misc]
    forge_chain(folder)


def number(entry: Entry) -> int:
    assert isinstance(entry.event, SwitchRequested)
    return entry.event.give_back_at


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("packed", [*AS_TODAY, *OTHER_CODE, *KNOWN_BAD, *WORDS], ids=named)
def test_nothing_that_was_recorded_is_lost_in_reading(packed: Path, tmp_path: Path) -> None:
    assert (packed / PACKED).stat().st_size < MOST_BYTES
    for row in rows_of(unpack(packed, tmp_path / "run")):
        if row.version == KINDS[row.kind].schema_version:
            after = msgpack.unpackb(Row.of(row.entry()).body)
            assert keeps(msgpack.unpackb(row.body), after), UPCASTER.format(kind=row.kind, version=row.version)
        else:
            row.entry()


@pytest.mark.parametrize("packed", [*AS_TODAY, *OTHER_CODE], ids=named)
def test_a_run_is_whole_whichever_code_made_it(packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "run")
    report = verify_recording(folder, subjects)
    assert report.passed, "\n".join(map(str, report.differences[:5]))
    check_books(entries_of(folder))


@pytest.mark.parametrize("packed", AS_TODAY, ids=named)
def test_this_checkout_decides_as_it_was_recorded(packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "run")
    stamp(folder)
    report = verify_recording(folder, subjects)
    assert not report.other_code
    assert report.passed, "\n".join([*map(str, report.differences[:5]), MEANT.format(name=packed.name)])
    assert report.decisions > 50


@pytest.mark.parametrize("packed", KNOWN_BAD, ids=named)
def test_a_changed_verdict_is_named_with_its_position_and_its_field(packed: Path, tmp_path: Path) -> None:
    honest = entries_of(unpack(packed_as("lending"), tmp_path / "honest"))
    folder = unpack(packed, tmp_path / "bad")
    pairs = zip(honest, entries_of(folder), strict=True)
    (changed,) = [(before, after) for before, after in pairs if before.event != after.event]
    stamp(folder)
    result = replay("verify", folder)
    assert result.exit_code == 1
    assert re.search(rf"^position {changed[1].cause}, policy: ", result.output)
    assert "SwitchRequested is not what the core decides" in result.output
    assert f"give_back_at: {number(changed[1])} recorded, {number(changed[0])} expected" in result.output


@pytest.mark.parametrize("packed", KNOWN_BAD, ids=named)
def test_the_bad_one_is_bad_for_its_decision_alone(packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "run")
    stamp(folder)
    report = verify_recording(folder, subjects)
    assert {difference.sort for difference in report.differences} <= {"decision", "missing"}
    first = report.differences[0]
    assert (first.source, [field.path for field in first.fields]) == ("policy", ["give_back_at"])


@pytest.mark.parametrize("command", ["report", "trace"])
def test_what_draws_a_recording_says_in_a_sentence_that_it_is_not_whole(command: str, tmp_path: Path) -> None:
    folder = unpack(packed_as("lending"), tmp_path / "run")
    execute(folder, "DELETE FROM entries WHERE position = ?", positions(entries_of(folder), "BatchFormed")[1])
    result = replay(command, folder, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "cannot be followed: AssertionError: StepDone without BatchFormed; `swingshift replay verify" in result.output


def test_every_kind_of_event_is_in_a_golden_recording_in_each_of_its_schemas() -> None:
    assert missing_words() == [], "run `python -m tests.golden.make words`"


def test_a_recording_that_was_begun_without_snapshots_is_gone_on_with(tmp_path: Path) -> None:
    folder = unpack(packed_as("first_format"), tmp_path / "run")
    with Recording.open(folder) as recording:
        run, log_id, last, _ = recording.meta()
    with Recorder.open(folder, run, log_id) as recorder:
        assert recorder.last_position == last
    assert verify_recording(folder, subjects).passed


def older(body: dict[str, object]) -> None:
    """What a schema before today's might have looked like."""
    body["needed"] = body.pop("need")


def newer(body: codec.Body) -> codec.Body:
    return {name: value for name, value in body.items() if name != "needed"} | {"need": body["needed"]}


def test_a_recording_with_an_older_schema_of_an_event_is_read_and_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpack(packed_as("lending"), tmp_path / "run")
    stamp(folder)
    waits = positions(entries_of(folder), "WaitSamples")
    for position in waits:
        change_body(folder, position, older)
    forge_chain(folder)
    assert {(found.position, found.sort) for found in verify_recording(folder, subjects).differences} == {
        (position, "unreadable") for position in waits
    }

    monkeypatch.setattr(WaitSamples, "schema_version", 2)
    monkeypatch.setitem(codec.UPCASTERS, ("WaitSamples", 1), newer)
    report = verify_recording(folder, subjects)
    assert report.passed, "\n".join(map(str, report.differences[:5]))

    execute(folder, "UPDATE entries SET version = 3 WHERE position = ?", waits[0])
    with pytest.raises(CodecError, match=f"entry {waits[0]} cannot be read: WaitSamples has schema 3"):
        entries_of(folder)
