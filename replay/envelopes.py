"""What must hold of every entry's envelope, checked by a fold: dense positions, the chain, causes, epochs, emitters.

The chain is computed from the body's stored bytes, not from the event read from them, so that no change escapes that reads the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus import chain
from bus.entry import Entry
from bus.errors import CoreError
from bus.events import Event, PolicyAttached, ServiceStarted
from bus.host import check_emitter
from bus.recording import Row
from replay.differences import Difference, Report

OPERATOR_EPOCH = 0
BEGINS = frozenset[type[Event]]({ServiceStarted, PolicyAttached})


class Envelopes:
    """Fold of a whole log."""

    def __init__(self) -> None:
        self.last_position = 0
        self.last_chain = chain.GENESIS
        self._epochs: dict[str, int] = {}

    def check(self, rows: Sequence[Row], entries: Sequence[Entry | None], report: Report) -> None:
        """Takes in the next rows, each with its entry unless it cannot be read; what is wrong with them goes into the report."""
        report.entries += len(rows)
        for row, entry in zip(rows, entries, strict=True):
            position = row.position
            if row.link(self.last_chain) != row.chain:
                what = "the chain breaks here: this entry or the one before was changed, removed or moved"
                report.add(Difference(position, row.source, "chain", what))
            if position != self.last_position + 1 or not row.derived <= row.cause < position:
                for fault in self._faults_of_place(row):
                    report.add(Difference(position, row.source, "envelope", fault))
            if entry is None:
                self._epochs[row.source] = row.epoch
            else:
                self._check_emitter(entry, report)
            self.last_position, self.last_chain = position, row.chain

    def _check_emitter(self, entry: Entry, report: Report) -> None:
        position, source, epoch, _, _, _, _, event = entry
        current = self._epochs.get(source, 0)
        fault = ""
        if type(event) in BEGINS:
            self._epochs[source] = epoch
            # It may skip some: a log that was restored fences out whoever still has the lost one.
            if epoch <= current:
                fault = f"starts epoch {epoch} after epoch {current}"
        elif epoch not in (current, OPERATOR_EPOCH):
            fault = f"written by epoch {epoch} while epoch {current} held the service"
        if fault:
            report.add(Difference(position, source, "envelope", fault))
        try:
            check_emitter(source, event)
        except CoreError as error:
            report.add(Difference(position, source, "envelope", str(error)))

    def _faults_of_place(self, row: Row) -> list[str]:
        faults = []
        if row.position != self.last_position + 1:
            faults.append(f"position {row.position} follows {self.last_position}: an entry was removed, added or moved")
        if not 0 <= row.cause < max(row.position, 1):
            faults.append(f"its cause {row.cause} is not an earlier entry")
        if row.derived and not row.cause:
            faults.append("it is a decision without a cause")
        return faults
