"""Verification of a recording: its rows as they are stored, then what the cores and the invariants say of the entries in them.

summary.json ── last_chain ──┐
events.sqlite ── rows ───────┴─▶ envelopes, every row ─▶ entries, up to the first row that cannot be read ─▶ cores, invariants
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bus.entry import Entry
from bus.errors import CodecError, ConfigError
from bus.recording import Recording, Row
from replay.verify import Difference, Report, Subject, Track, check_cores, check_envelopes, untracked

SUMMARY = "summary.json"
LOG = "log"
"""Source of a difference that is of no single entry."""


def verify_recording(folder: Path, subjects: Sequence[Subject], track: Track = untracked) -> Report:
    """Checks the recording in `folder`. Raises ConfigError when there is none, LogError when the file is damaged."""
    report = Report()
    with Recording.open(folder) as recording:
        entries = _Entries(recording, report)
        check_envelopes(entries, report, expected_chain(folder))
        _check_meta(recording, report)
    check_cores(entries.readable, subjects, report, track)
    report.differences.sort(key=lambda difference: difference.position)
    return report


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


class _Entries:
    """The rows of a recording with their entries; those before the first that cannot be read are kept."""

    def __init__(self, recording: Recording, report: Report) -> None:
        self.readable: list[Entry] = []
        self._recording = recording
        self._report = report
        self._torn = False

    def __iter__(self) -> Iterator[tuple[Row, Entry | None]]:
        try:
            for row in self._recording.rows():
                yield row, self._read(row)
        except CodecError as error:
            self._note(self.readable[-1].position + 1 if self.readable else 1, LOG, f"{error}; nothing after it was checked")

    def _read(self, row: Row) -> Entry | None:
        try:
            entry = row.entry()
        except CodecError as error:
            self._note(row.position, row.source, f"{error}; after it only envelopes were checked" if not self._torn else str(error))
            self._torn = True
            return None
        if not self._torn:
            self.readable.append(entry)
        return entry

    def _note(self, position: int, source: str, what: str) -> None:
        self._report.differences.append(Difference(position, source, what))


def _check_meta(recording: Recording, report: Report) -> None:
    """The recorder's own note of where the log ends: finds a tail that was cut from the table alone."""
    meta, last = recording.meta(), recording.last_position()
    if meta.last_position > last:
        what = f"the recorder got to entry {meta.last_position}: the tail was cut"
        report.differences.append(Difference(last, LOG, what))
