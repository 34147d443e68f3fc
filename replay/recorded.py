"""Verifies a recording on disk: what `replay.verify` says of the entries in it, and what else lies in the folder.

    summary.json ──── last_chain ─┐
    events.sqlite ─── rows ───────┴─▶ envelopes, every row ─▶ entries, up to the first row that cannot be read ─▶ cores, invariants
    payloads.sqlite ─ payloads ─────▶ every payload that an entry names
    weights/, checkpoints/ ─────────▶ files that say what their digest is

Each row is read and decoded once; what is in memory does not grow with the recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from bus.entry import Entry
from bus.errors import CodecError, ConfigError
from bus.events import PolicyAttached
from bus.recording import Recording, Row
from replay.core_check import Subject
from replay.differences import LOG, Difference, Report
from replay.envelopes import Envelopes
from replay.follow import Follow, unwatched
from replay.lookahead import Attached, Outline, last_answers
from replay.payload_check import PayloadCheck, open_payloads
from replay.snapshot_check import open_snapshots
from replay.verify import BATCH, check_cores, check_end
from replay.weights_check import check_weights

SUMMARY = "summary.json"
SubjectsOf = Callable[[Sequence[Attached]], Sequence[Subject]]
"""The cores to verify, given the policies that attach."""


def verify_recording(folder: Path, subjects: SubjectsOf, follow: Follow = unwatched) -> Report:
    """Checks the recording in `folder`. Raises ConfigError when there is none, LogError when the file is damaged."""
    report = Report()
    with Recording.open(folder) as recording, open_payloads(folder, report) as payloads, open_snapshots(folder) as snapshots:
        noted, last = recording.meta().last_position, recording.last_position()
        outline = outline_of(recording, last)
        entries = CheckedEntries(recording, payloads, report)
        check_cores(entries.read(last, follow), outline, subjects(outline.attached), report, snapshots)
        check_end(entries.envelopes, report, expected_chain(folder))
        check_weights(folder, recording, last, report, follow)
        if noted > last:
            # The recorder's own note of where the log ends: finds a tail that was cut from the table alone.
            report.add(Difference(last, LOG, "tail", f"the recorder got to entry {noted}: the tail was cut"))
    report.differences.sort(key=lambda difference: difference.position)
    return report


def outline_of(recording: Recording, last: int) -> Outline:
    """Where the answers up to position `last` lie, and which policies attach; rows that cannot be read are left out. Raises LogError."""
    return Outline(last_answers(recording.answers(last), last), tuple(_attached(recording, last)))


def _attached(recording: Recording, last: int) -> Iterator[Attached]:
    try:
        for row in recording.rows(last=last, kinds=[PolicyAttached.kind]):
            event = row.entry().event
            if isinstance(event, PolicyAttached):
                yield row.source, event
    except CodecError:
        return


def expected_chain(folder: Path) -> str | None:
    """The last chain as the run's summary has it; None: there is no summary. Raises ConfigError for a summary that is none."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        chain = json.loads(path.read_text())["last_chain"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} has no last_chain: it is not the summary of a run ({type(error).__name__}: {error})") from error
    return str(chain)


class CheckedEntries:
    """The entries of a recording up to the first that cannot be read; each row's envelope and payload is checked on the way."""

    def __init__(self, recording: Recording, payloads: PayloadCheck, report: Report) -> None:
        self.envelopes = Envelopes()
        self._recording = recording
        self._payloads = payloads
        self._report = report
        self._torn = False
        """A row could not be read."""

    def read(self, last: int, follow: Follow = unwatched) -> Iterator[Entry]:
        """Up to position `last`. Raises LogError when the file is damaged."""
        for batch in follow(self._batches(last), "verifying", last, lambda rows: rows[-1].position):
            was_torn = self._torn
            entries = [self._entry(row) for row in batch]
            self.envelopes.check(batch, entries, self._report)
            readable = [entry for entry in entries if entry is not None]
            self._payloads.take(readable)
            if not was_torn:
                yield from readable[: entries.index(None) if self._torn else len(readable)]

    def _batches(self, last: int) -> Iterator[list[Row]]:
        rows = self._rows(last)
        while batch := list(islice(rows, BATCH)):
            yield batch

    def _rows(self, last: int) -> Iterator[Row]:
        position = 0
        try:
            for row in self._recording.rows(last=last):
                position = row.position
                yield row
        except CodecError as error:
            self._note(position + 1, LOG, f"{error}; nothing after it was checked")

    def _entry(self, row: Row) -> Entry | None:
        try:
            return row.entry()
        except CodecError as error:
            rest = "" if self._torn else "; after it only envelopes and payloads were checked"
            self._note(row.position, row.source, f"{error}{rest}")
            self._torn = True
            return None

    def _note(self, position: int, source: str, what: str) -> None:
        self._report.add(Difference(position, source, "unreadable", what))
