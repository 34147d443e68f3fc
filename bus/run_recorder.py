"""Records a run whole: the entries of its log, and the payloads that they name.

    entries ─▶ what they name ─▶ server: payloads, a few at a time ─▶ each is hashed once, against its entry, and packed
                                         └─▶ payloads.sqlite (on the disk) ─▶ events.sqlite (on the disk) ─▶ `append` returns

In this order, so that whoever is killed in between leaves payloads that no entry names yet, and never an entry without its payloads: the
successor begins with the same entries again. Prompts are not recorded: the rollouter writes them anew, with the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bus.blobs import TOGETHER_BYTES, together
from bus.events import BlobRef, Event, GenerationFinished, SampleReady
from bus.payload_recording import PackedPayload, PayloadRecorder
from bus.recorder import Recorder
from bus.recording import Row

logger = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
MOST_PAYLOADS = 1_000
"""Payloads that are committed together, unless one alone is larger: so much of them is in memory at a time."""
MOST_NAMED = 5
"""Payloads that one message names."""


class PayloadSource(Protocol):
    """Where the payloads of a run still are."""

    def get_refs(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        """By name, those that are there and have the digest that `refs` say. The answer is as large as all of them together."""


class Rows(Protocol):
    """The log whose entries are recorded: `RedisLog`, `MemoryLog`, or what reads them from elsewhere, too."""

    @property
    def run(self) -> str:
        """The run's id."""

    @property
    def log_id(self) -> str:
        """Identity of the log."""

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Row]:
        """Entries after a position as they are stored; see `bus.log.Log.read`."""


NAMING = (GenerationFinished.kind, SampleReady.kind)
"""Kinds whose events are the first to name a payload; a request that goes on with an answer names that of an earlier outcome."""


def payload_of(event: Event) -> BlobRef | None:
    """The payload that an event is the first to name."""
    match event:
        case GenerationFinished() | SampleReady():
            return event.blob
        case _:
            return None


class RunRecorder:
    """Writes both files of a recording; `open` makes one. Not for use by several threads."""

    def __init__(self, recorder: Recorder, payloads: PayloadRecorder, source: PayloadSource) -> None:
        self._recorder = recorder
        self._payloads = payloads
        self._source = source

    @classmethod
    def open(cls, folder: Path, run: str, log_id: str, source: PayloadSource) -> RunRecorder:
        """Goes on with the recording in `folder`, or begins one there. Raises as `Recorder.open` does."""
        recorder = Recorder.open(folder, run, log_id)
        try:
            return cls(recorder, PayloadRecorder.open(folder), source)
        except BaseException:
            recorder.close()
            raise

    @property
    def last_position(self) -> int:
        """Position of the newest entry that is durably recorded, 0 before the first."""
        return self._recorder.last_position

    @property
    def last_chain(self) -> str:
        """Chain of that entry."""
        return self._recorder.last_chain

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._payloads.close()
        self._recorder.close()

    def append(self, rows: Sequence[Row]) -> None:
        """Records `rows` with their payloads; when it returns they survive a power cut. Raises as `Recorder.append` does, and CodecError.

        A payload that is not there any more is named in the log of this process, and its entry recorded without it.
        """
        # Looked at first: the payloads of a log that went on differently would replace those that are recorded.
        self._recorder.check(rows)
        missing: list[str] = []
        refs = (ref for row in rows if row.kind in NAMING and (ref := payload_of(row.entry().event)) is not None)
        for batch in together(refs, MOST_BYTES, MOST_PAYLOADS):
            missing += self._record(batch)
        if missing:
            more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            logger.warning(
                "payloads are gone, their entries are recorded without them: positions=%d-%d payloads=%s%s",
                rows[0].position, rows[-1].position, ",".join(missing[:MOST_NAMED]), more,
            )  # fmt: skip
        self._recorder.append_rows(rows)

    def _record(self, refs: Sequence[BlobRef]) -> list[str]:
        """Records the payloads of one batch; returns the names of those that are neither on the server nor recorded."""
        wanted = {ref.name: ref for ref in refs}
        packed: dict[str, PackedPayload] = {}
        for some in together(wanted.values(), TOGETHER_BYTES):
            found = self._source.get_refs(some)
            packed.update((name, self._payloads.pack(wanted[name], data)) for name, data in found.items())
        self._payloads.put_packed(packed.values())
        return [name for name, ref in wanted.items() if name not in packed and self._payloads.digest(name) != ref.digest]
