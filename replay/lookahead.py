"""The entries of a log in order, each with the decisions that it led to, though these come later in the log.

    log     … 71 fact   72 fact   73 decision(cause=71)   74 fact …
    yields  (71, [73])  (72, [])  (73, [])  (74, …)

What lies between a cause and its last decision is held in memory, and no more: a service that lags behind by ten thousand entries costs
ten thousand entries, whatever the length of the log.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bus.entry import Entry
from bus.events import PolicyAttached

Attached = tuple[str, PolicyAttached]
"""(source, event) of a policy that begins."""
WithAnswers = tuple[Entry, Sequence[Entry]]
"""An entry, and the decisions with it as cause, of any service."""


@dataclass(frozen=True)
class Outline:
    """What must be known of a log before it is read through."""

    last_answer: Sequence[int]
    """By cause: position of the last decision that names it, 0 for none."""
    attached: Sequence[Attached]
    """Policies in the order in which they begin."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Outline:
        """The outline of a log in memory."""
        last = max((entry.position for entry in entries), default=0)
        answers = ((entry.cause, entry.position) for entry in entries if entry.derived)
        attached = [(entry.source, entry.event) for entry in entries if isinstance(entry.event, PolicyAttached)]
        return cls(last_answers(answers, last), attached)


def last_answers(answers: Iterable[tuple[int, int]], last: int) -> Sequence[int]:
    """By cause, of (cause, position) pairs of a log that ends at `last`; causes that no entry can be are left out."""
    found = array("q", bytes(8 * (last + 1)))
    for cause, position in answers:
        if 0 <= cause <= last:
            found[cause] = position
    return found


def with_answers(entries: Iterable[Entry], last_answer: Sequence[int]) -> Iterator[WithAnswers]:
    """Each entry with its decisions, of all services, in log order; those that are not among `entries` are left out.

    `last_answer` covers every position among `entries`.
    """
    held: deque[Entry] = deque()
    answers: dict[int, list[Entry]] = {}
    for entry in entries:
        position = entry.position
        if entry.derived:
            answers.setdefault(entry.cause, []).append(entry)
        held.append(entry)
        while held and last_answer[held[0].position] <= position:
            first = held.popleft()
            yield first, answers.pop(first.position, ())
    for entry in held:
        yield entry, answers.pop(entry.position, ())
