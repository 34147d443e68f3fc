"""The books that the cores keep (`bus.books`), fed with the same log as the ledger, to be compared with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.books import Books
from bus.events import Event

MOST_NAMED = 8


class CoresBooks:
    """Goes on as long as the cores' fold can."""

    def __init__(self) -> None:
        self._books = Books()
        self._broken = ""

    def apply(self, event: Event) -> None:
        """Takes in one event."""
        if self._broken:
            return
        try:
            self._books.apply(event)
        except (AssertionError, LookupError, ValueError, TypeError) as error:
            self._broken = f"the cores' books cannot follow this log: {type(error).__name__}: {error}"

    def differences(
        self, *, trained: int, dropped: Mapping[str, int], in_flight: Collection[int], ready: Collection[int], batch: Collection[int]
    ) -> list[str]:
        """Where they differ from what the ledger found."""
        if self._broken:
            return [self._broken]
        books = self._books
        found: list[str] = []
        if books.trained != trained:
            found.append(f"the cores count {books.trained} samples as trained, here are {trained}")
        if books.dropped != dict(dropped):
            found.append(f"the cores count {books.dropped} as dropped, here are {dict(dropped)}")
        theirs = {
            "in flight": (books.in_flight.keys(), in_flight),
            "ready": (books.ready.keys(), ready),
            "in a batch": (() if books.batch is None else books.batch.samples, batch),
        }
        for state, (cores, here) in theirs.items():
            apart = sorted(set(cores) ^ set(here))
            if apart:
                named = ", ".join(map(str, apart[:MOST_NAMED])) + (", …" if len(apart) > MOST_NAMED else "")
                found.append(f"the cores have {len(cores)} samples {state}, here are {len(here)}: they differ in {named}")
        return found
