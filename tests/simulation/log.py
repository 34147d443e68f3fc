"""The in-memory log as a service sees it on a bad day: replies get lost, and the process dies before or right after an append."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from bus.entry import Draft, Producer
from bus.log import WHATEVER, Attached
from bus.memory_log import MemoryLog, MemoryStore


class Crash(Exception):
    """The process is gone at this very moment."""


class FaultyLog(MemoryLog):
    """One process's client; `watch` is told every kind that was appended and may raise Crash."""

    def __init__(self, store: MemoryStore, random: Random, reply_lost: float, watch: Callable[[str, bool], None]) -> None:
        super().__init__(store)
        self._random = random
        self._reply_lost = reply_lost
        self._watch = watch
        self._tries = 0

    def attach(self, source: str, draft: Draft, after: int = WHATEVER) -> Attached:
        attached = super().attach(source, draft, after)
        self._watch(draft.event.kind, True)
        return attached

    def append(self, producer: Producer, drafts: Sequence[Draft]) -> int:
        for draft in drafts:
            self._watch(draft.event.kind, False)
        self._tries += 1
        position = self.append_numbered(producer, drafts, self._tries)
        if self._random.random() < self._reply_lost:
            again = self.append_numbered(producer, drafts, self._tries)
            assert again == position, f"a retry was answered with {again}, the first try with {position} (C-48)"
        for draft in drafts:
            self._watch(draft.event.kind, True)
        return position
