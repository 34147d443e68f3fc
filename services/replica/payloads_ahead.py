"""Payloads that are read ahead, all of them in one call: a round trip for each would keep what comes behind them waiting."""

from __future__ import annotations

from collections.abc import Sequence

from bus.events import GenerationRequested
from bus.log import Blobs
from services.payloads import requested_prompt_blob


class PayloadsAhead:
    """What some requests need: their prompts, and the answers so far. Any other payload is read when it is asked for."""

    def __init__(self, blobs: Blobs, requests: Sequence[GenerationRequested]) -> None:
        self._blobs = blobs
        names = [requested_prompt_blob(request) for request in requests]
        names += [request.prefix.name for request in requests if request.prefix is not None]
        self._found = blobs.get_many(list(dict.fromkeys(names))) if len(names) > 1 else {}

    def get(self, name: str) -> bytes:
        """The payload. Raises BlobMissing."""
        found = self._found.get(name)
        return self._blobs.get(name) if found is None else found
