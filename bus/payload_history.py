"""A run's payloads, wherever they are by now: on the server, in the recording in `folder`, or only in the archiver's.

get_refs(refs) ─▶ the server ─ not there any more ─▶ payloads.sqlite in `folder` ─ not there either ─▶ the archiver (bus/recall.py)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from bus.blobs import blob_digest
from bus.errors import BlobMissing, GapError
from bus.events import BlobRef
from bus.payload_recording import FILE_NAME, PayloadRecording
from bus.run_recorder import PayloadSource

logger = logging.getLogger(__name__)

Recalled = Callable[[Sequence[str]], dict[str, bytes]]
"""Gives those of the names that an archiver has recorded. Raises GapError when none answers."""


class PayloadHistory:
    """A `bus.run_recorder.PayloadSource` for who comes late. Not thread-safe: one a thread."""

    def __init__(self, server: PayloadSource, folder: Path | None, recalled: Recalled | None = None) -> None:
        self._server = server
        self._folder = folder
        self._recalled = recalled

    def get_refs(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        """By name, those of `refs` that are somewhere, and are what these name."""
        found = self._server.get_refs(refs)
        found |= self._recorded([ref for ref in refs if ref.name not in found])
        missing = {ref.name: ref.digest for ref in refs if ref.name not in found}
        if missing and self._recalled is not None:
            try:
                recalled = self._recalled(list(missing))
                found |= {name: data for name, data in recalled.items() if missing[name] == blob_digest(data)}
            except GapError as error:
                logger.warning("nobody has the payloads that the server has forgotten: error=%s", error)
                self._recalled = None
        return found

    def _recorded(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        if not refs or self._folder is None or not (self._folder / FILE_NAME).is_file():
            return {}
        found: dict[str, bytes] = {}
        with PayloadRecording.open(self._folder) as recording:
            for ref in refs:
                try:
                    found[ref.name] = recording.get_ref(ref)
                except BlobMissing:
                    continue
        return found
