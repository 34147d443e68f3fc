"""What must hold of every entry's envelope, checked by a fold: dense positions, the chain, causes, epochs, emitters.

The chain is computed from the body's stored bytes, not from the event read from them, so that no change escapes that reads the same.
"""

from __future__ import annotations

from bus import chain
from bus.entry import Entry
from bus.errors import CoreError
from bus.events import PolicyAttached, ServiceStarted
from bus.host import check_emitter
from bus.recording import Row

OPERATOR_EPOCH = 0


class Envelopes:
    """Fold of a whole log; `take` returns what is wrong with a row, in words."""

    def __init__(self) -> None:
        self.last_position = 0
        self.last_chain = chain.GENESIS
        self._epochs: dict[str, int] = {}

    def take(self, row: Row, entry: Entry | None) -> list[str]:
        """Takes in the next row and, unless it cannot be read, its entry."""
        faults = self._check_place(row)
        if not 0 <= row.cause < max(row.position, 1):
            faults.append(f"its cause {row.cause} is not an earlier entry")
        if entry is None:
            self._epochs[row.source] = row.epoch
            return faults
        return [*faults, *self._check_epoch(entry), *_check_emitter(entry)]

    def _check_place(self, row: Row) -> list[str]:
        faults = []
        if row.position != self.last_position + 1:
            faults.append(f"position {row.position} follows {self.last_position}: an entry was removed, added or moved")
        if row.link(self.last_chain) != row.chain:
            faults.append("the chain breaks here: this entry or the one before was changed, removed or moved")
        self.last_position, self.last_chain = row.position, row.chain
        return faults

    def _check_epoch(self, entry: Entry) -> list[str]:
        current = self._epochs.get(entry.source, 0)
        if isinstance(entry.event, ServiceStarted | PolicyAttached):
            self._epochs[entry.source] = entry.epoch
            return [] if entry.epoch == current + 1 else [f"starts epoch {entry.epoch} after epoch {current}"]
        if entry.epoch in (OPERATOR_EPOCH, current):
            return []
        return [f"written by epoch {entry.epoch} while epoch {current} held the service"]


def _check_emitter(entry: Entry) -> list[str]:
    try:
        check_emitter(entry.source, entry.event)
    except CoreError as error:
        return [str(error)]
    return []
