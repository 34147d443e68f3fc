"""The one loop that live services, replay and simulation share: apply an entry, then decide.

    entry ─▶ core.apply ─▶ core.decide ─▶ apply the answer ─▶ core.decide ─▶ … None, or the bound
                              └──────── answers are appended in order, cause = entry ────────▶ log

Entries that were read together are taken one after the other and their answers appended together, so many in a call: what a crash loses of
them is decided again by the successor.

An own derived entry that comes back from the log is not applied again, but `decide` is asked with it as cause, so the bound loses nothing.
`rebuild` restores the state that an incarnation had: entries in order, own derived ones right after their cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bus.codec import encode
from bus.core import Core
from bus.entry import Draft, Entry, Producer, role_of
from bus.errors import CoreError
from bus.events import Event
from bus.log import Log

MAX_DECISIONS = 64
"""Decisions taken on one entry before reading on."""
MAX_TOGETHER = 64
"""Most decisions in one append: the server answers nobody else meanwhile, and weights for a thousand replicas are as many requests."""

Clock = Callable[[], int]
Prepare = Callable[[Sequence[Event]], None]


class Host:
    """Drives one incarnation of a core.

    `prepare` is called with derived events before they are appended (to write what they name). `ignores`: events that change nothing in
    this core, which is not told of them, nor asked on them.
    """

    def __init__(
        self,
        core: Core,
        log: Log,
        producer: Producer,
        clock: Clock,
        prepare: Prepare | None = None,
        ignores: frozenset[type[Event]] = frozenset(),
    ) -> None:
        self.core = core
        self.producer = producer
        self._log = log
        self._clock = clock
        self._prepare = prepare
        self._ignores = ignores
        self._silent = False
        """The core, asked last, had nothing more to decide: until something is applied it has nothing to decide."""
        self.decided_at: dict[str, int] = {}
        """Kind -> position of this source's newest decision of that kind: the cause of the fact that follows it."""

    def take(self, entries: Sequence[Entry]) -> list[Event]:
        """Applies each entry and decides on it, then appends all decisions, each with its cause; returns them.

        Raises what `Log.append` raises: then this process must end.
        """
        drafts: list[Draft] = []
        for entry in entries:
            if self._silent and type(entry.event) in self._ignores:
                continue
            if not self._is_own_derived(entry):
                self.core.apply(entry)
            elif self._silent:
                continue
            drafts += self._decide(entry.position)
        return self._append(drafts)

    def decide(self, cause: int) -> list[Event]:
        """Decides with `cause`, up to the bound, and appends."""
        return self._append(self._decide(cause))

    def _decide(self, cause: int) -> list[Draft]:
        at = self._clock()
        decisions = decide_all(self.core, cause)
        self._silent = len(decisions) < MAX_DECISIONS
        return [Draft(event, derived=True, cause=cause, at=at) for event in decisions]

    def _append(self, drafts: Sequence[Draft]) -> list[Event]:
        decisions = [draft.event for draft in drafts]
        if drafts and self._prepare is not None:
            self._prepare(decisions)
        for start in range(0, len(drafts), MAX_TOGETHER):
            first = self._log.append(self.producer, drafts[start : start + MAX_TOGETHER])
            self.decided_at.update((event.kind, position) for position, event in enumerate(decisions[start : start + MAX_TOGETHER], first))
        return decisions

    def append_facts(self, facts: Sequence[tuple[Event, int]]) -> None:
        """Appends facts with their causes; they reach the core through the log like everybody's."""
        at = self._clock()
        for event, _ in facts:
            check_emitter(self.producer.source, event)
        self._log.append(self.producer, [Draft(event, derived=False, cause=cause, at=at) for event, cause in facts])

    def _is_own_derived(self, entry: Entry) -> bool:
        return entry.derived and entry.source == self.producer.source and entry.epoch == self.producer.epoch


def decide_all(core: Core, cause: int) -> list[Event]:
    """Asks `decide` until it is silent or the bound is reached, applying each answer as the core's own."""
    decisions: list[Event] = []
    while len(decisions) < MAX_DECISIONS:
        event = core.decide()
        if event is None:
            break
        check_emitter(core.source, event)
        encode(event)
        core.apply(own(core, event, cause))
        decisions.append(event)
    return decisions


def own(core: Core, event: Event, cause: int) -> Entry:
    """A decision as the entry that its own core applies: its position and time are not known yet, and must not matter."""
    return Entry(position=0, source=core.source, epoch=0, derived=True, cause=cause, at=0, chain="", event=event)


def check_emitter(source: str, event: Event) -> None:
    """Raises CoreError when `source` is not the one emitter of this kind of event."""
    role = role_of(source)
    if event.emitter == role:
        return
    allowed = event.emitted_by()
    if allowed is not None and role not in allowed:
        raise CoreError(f"{source} emitted {event.kind}, which only {' or '.join(allowed)} may emit: this is a bug, please report it")


def rebuild(core: Core, entries: Iterable[Entry]) -> int:
    """Applies a recorded log to a fresh core; returns the last position. What is recorded wins: `decide` is not asked.

    Own derived entries are applied right after their cause, whatever incarnation wrote them, as that incarnation did.
    """
    recorded = list(entries)
    known = {entry.position for entry in recorded}
    # An incarnation appends in the order of its causes; a log that was tampered with may have another order, or lack a cause.
    decisions = sorted((entry for entry in recorded if _is_decision(core, entry) and entry.cause in known), key=lambda entry: entry.cause)
    return rebuild_in_order(core, recorded, decisions)


def rebuild_in_order(core: Core, entries: Iterable[Entry], decisions: Iterable[Entry], after: int = 0) -> int:
    """`rebuild` of a log of any length: `decisions` are the own derived ones among `entries`, by cause, as a second stream that is ahead.

    `after`: the core's state is that after this position already, and `entries` and `decisions` are those behind it.
    Raises CoreError when the causes are not in order.
    """
    position = after
    ahead = iter(decisions)
    decision = next(ahead, None)
    for entry in entries:
        position = entry.position
        if not _is_decision(core, entry):
            core.apply(entry)
        while decision is not None and decision.cause <= position:
            if decision.cause == position:
                core.apply(own(core, decision.event, position))
            elif decision.cause > after:
                raise CoreError(
                    f"{core.source} decided {decision.event.kind}, entry {decision.position}, on entry {decision.cause}, "
                    "but had decided on a later one before: the log was not written by swingshift, or was changed; verify its recording"
                )
            decision = next(ahead, None)
    return position


def _is_decision(core: Core, entry: Entry) -> bool:
    return entry.derived and entry.source == core.source
