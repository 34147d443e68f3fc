"""Who decided from where to where, which policies watched, and what was asked for and refused: folded from the log.

    PolicyRequested ─▶ pending ─┬─ PolicyAttached(request) ─▶ active from here on (or a shadow)
                                └─ PolicyRefused(request)  ─▶ nothing changed

A policy that attaches again for the same request is a restart of the same process, and no swap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from bus.entry import Entry
from bus.events import PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, ServiceLost, Value
from services.monitor.last_words import last_words
from services.policy.core import SOURCE, label_of, source_of

RESUMED = "the run was resumed"
"""Said of all services when a run goes on."""
MOST_KEPT = 256
"""Stretches, shadows and refusals that are kept, the newest ones; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy as it was chosen: its name, its settings, and a digest of the text it is from."""

    name: str
    params: tuple[tuple[str, Value], ...]
    digest: str = ""

    @classmethod
    def of(cls, name: str, params: Mapping[str, Value], source: str) -> Chosen:
        """As an event names it."""
        digest = blake2b(source.encode(), digest_size=8).hexdigest() if source else ""
        return cls(name, tuple(sorted(params.items())), digest)

    @property
    def short(self) -> str:
        """The name, of a policy from a file that of its class."""
        return self.name.rpartition(":")[2]

    def __str__(self) -> str:
        settings = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in self._said())
        return self.short + (f" ({settings})" if settings else "")

    def _said(self) -> list[tuple[str, Value]]:
        return [(name, value) for name, value in self.params if value is not None]


@dataclass
class Losses:
    """How often a policy's process was lost, which is started again then. A run that was resumed has lost nothing."""

    count: int = 0
    position: int = 0
    """Of the last one."""
    at: int = 0
    error: str = ""
    """What it said last."""

    def add(self, entry: Entry, detail: str) -> None:
        """Once more."""
        self.count += 1
        self.position, self.at, self.error = entry.position, entry.at, last_words(detail)

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{times}, last at entry {self.position}{f': {self.error}' if self.error else ''}"


@dataclass
class Stretch:
    """The part of a run in which one policy decided."""

    chosen: Chosen
    because: str
    """plan, swap, promote or rollback."""
    request: int
    """Position of the PolicyRequested; 0: the plan."""
    position: int
    """Of the PolicyAttached: it counts from here on."""
    boundary: int
    """The first one that is its to answer."""
    epoch: int
    restarts: int = 0
    until: int | None = None
    """Position of its successor's PolicyAttached."""
    losses: Losses = field(default_factory=Losses)


@dataclass
class Shadow:
    """A policy that watches."""

    label: str
    source: str
    """Of its entries in the log."""
    chosen: Chosen
    request: int
    position: int
    boundary: int
    epoch: int
    restarts: int = 0
    until: int | None = None
    """Where it ended."""
    ended: str = ""
    """Why."""
    losses: Losses = field(default_factory=Losses)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request to which nothing was changed."""

    request: int
    position: int
    action: str
    name: str
    label: str
    stage: str
    detail: str

    def __str__(self) -> str:
        last = last_words(self.detail) or "no reason was said"
        what = self.label or self.name.rpartition(":")[2] or "a policy"
        return f"{self.action or 'a request'} of {what} was refused at {self.stage}: {last}"


@dataclass
class PolicyHistory:
    """Fold of the policies' events. Feed it every entry once, in order."""

    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    num_stretches: int = 0
    shadows: dict[str, Shadow] = field(default_factory=dict)
    """Source -> the shadow that watches under it."""
    past_shadows: deque[Shadow] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    pending: dict[int, PolicyRequested] = field(default_factory=dict)
    """Position -> a request that nothing has come of yet."""
    refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    num_refusals: int = 0

    @property
    def active(self) -> Stretch | None:
        """Who decides now."""
        return self.stretches[-1] if self.stretches else None

    def apply(self, entry: Entry, next_boundary: int) -> None:
        """Takes in one entry. `next_boundary`: the one that is open, else the next to open."""
        match entry.event:
            case PolicyRequested() as event:
                self._ask(entry.position, event)
            case PolicyAttached(mode="active") as event:
                self._attach(entry, event, next_boundary)
            case PolicyAttached() as event:
                self._watch(entry, event, next_boundary)
            case PolicyRefused() as event:
                self._refuse(entry.position, event)
            case PolicyDetached() as event:
                self._end_shadow(entry.source, entry.position, event.reason)
            case ServiceLost() as event:
                self._lose(entry, event)
            case _:
                pass

    def _ask(self, position: int, event: PolicyRequested) -> None:
        # What is to end says so itself; there is nothing to wait for in here.
        if event.action != "detach":
            self.pending[position] = event
            for oldest in list(self.pending)[:-MOST_KEPT]:
                del self.pending[oldest]

    def _attach(self, entry: Entry, event: PolicyAttached, next_boundary: int) -> None:
        chosen, active = Chosen.of(event.name, event.params, event.source), self.active
        asked = self.pending.pop(event.request, None)
        if active is not None:
            if (active.request, active.chosen) == (event.request, chosen):
                active.epoch = entry.epoch
                active.restarts += 1
                return
            active.until = entry.position
        because = "plan" if not event.request else "swap" if asked is None else asked.action
        self.stretches.append(Stretch(chosen, because, event.request, entry.position, next_boundary, entry.epoch))
        self.num_stretches += 1
        if asked is not None and asked.action == "promote":
            self._end_shadow(source_of(event.label or asked.label, "shadow"), entry.position, "promoted")

    def _watch(self, entry: Entry, event: PolicyAttached, next_boundary: int) -> None:
        self.pending.pop(event.request, None)
        chosen, known = Chosen.of(event.name, event.params, event.source), self.shadows.get(entry.source)
        if known is not None and (known.request, known.chosen) == (event.request, chosen):
            known.epoch = entry.epoch
            known.restarts += 1
            return
        if known is not None:
            self._end_shadow(entry.source, entry.position, "another one took its label")
        label = event.label or label_of(entry.source)
        self.shadows[entry.source] = Shadow(label, entry.source, chosen, event.request, entry.position, next_boundary, entry.epoch)

    def _end_shadow(self, source: str, position: int, reason: str) -> None:
        shadow = self.shadows.pop(source, None)
        if shadow is not None:
            shadow.until, shadow.ended = position, reason
            self.past_shadows.append(shadow)

    def _lose(self, entry: Entry, event: ServiceLost) -> None:
        policy = self.active if event.service == SOURCE else self.shadows.get(event.service)
        if policy is not None and policy.epoch == event.epoch and event.detail != RESUMED:
            policy.losses.add(entry, event.detail)
        if not event.restarting:
            self._end_shadow(event.service, entry.position, "lost")

    def _refuse(self, position: int, event: PolicyRefused) -> None:
        asked = self.pending.pop(event.request, None)
        action = "" if asked is None else asked.action
        self.refusals.append(Refusal(event.request, position, action, event.name, event.label, event.stage, event.detail))
        self.num_refusals += 1
