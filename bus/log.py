"""The contract of a run's log. `MemoryLog` and `RedisLog` keep it; one contract suite runs on both.

One total order, dense positions from 1, appends checked before anything is written:
log id, epoch (fencing), the producer's counter (a retry returns the position of the first try), the size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.entry import Draft, Entry, Producer

WHATEVER = -1
"""An incarnation may follow whichever there was."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What `attach` gives: the new incarnation's identity, and the position of its ServiceStarted (or PolicyAttached)."""

    producer: Producer
    position: int


class Log(Protocol):
    """One run's log, as one client sees it. Not thread-safe: one client a thread."""

    @property
    def run(self) -> str:
        """The run's id."""

    @property
    def log_id(self) -> str:
        """Identity of this very log; another one under the same run id is another log."""

    def attach(self, source: str, draft: Draft, after: int = WHATEVER) -> Attached:
        """Appends a ServiceStarted or PolicyAttached and allocates the epoch in the same call. From then on lower epochs are fenced.

        `after`: only if this is the newest epoch of the source (0: it has none yet). Raises Fenced where it is not.
        """

    def append(self, producer: Producer, drafts: Sequence[Draft]) -> int:
        """Appends all of `drafts`, adjacent and in order, or nothing; returns the first one's position.

        Retries safely after a lost reply. Raises Fenced, LogChanged, LogMissing, EntryTooLarge, LogUnavailable.
        """

    def append_with(self, payloads: Mapping[str, bytes], producer: Producer, drafts: Sequence[Draft]) -> int:
        """`append`, and the payloads that `drafts` name are there whenever these are: in one call what `Blobs.put_many` and `append` do.

        Where it is refused, payloads may have been stored.
        """

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        """Entries with positions after+1, after+2, … (at most `limit`); with none there, waits up to `block_ms` (0: not at all).

        Raises GapError when they were trimmed, LogChanged when the log is not the one this client read before.
        """

    def read_inbox(self, replica: str, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        """Like `read`, but only the entries mirrored for one replica; their positions have gaps."""

    def last_position(self) -> int:
        """Position of the newest entry."""

    def ended_at(self) -> int:
        """Position of RunEnded as the last `read_inbox` saw it, 0: it was not there then. For who does not read the whole log."""


class BlobReader(Protocol):
    """Payloads of a run by name, to be read: on the server, or recorded."""

    def get(self, name: str) -> bytes:
        """The payload. Raises BlobMissing."""


class Blobs(BlobReader, Protocol):
    """Payloads of a run by name. A name is written once; writing the same name again replaces it."""

    def put(self, name: str, data: bytes) -> None:
        """Stores `data`; durable before the entry that names it is appended."""

    def put_many(self, payloads: Mapping[str, bytes]) -> None:
        """The same of several, in fewer calls."""

    def get_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those of `names` that are there and whole. The answer is as large as all of them together."""

    def delete(self, names: Sequence[str]) -> None:
        """Removes payloads whose last reader is done; unknown names are ignored."""
