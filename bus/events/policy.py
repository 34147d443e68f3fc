"""Events of a policy.

PolicyAttached ▸ (boundary v opens) ▸ SwitchRequested(answers=v) … ▸ PolicyDetached        a shadow: ShadowVerdict
"""

from __future__ import annotations

from typing import ClassVar, Literal

from bus.events.base import Event, Role, Target, Value


class PolicyAttached(Event):
    """A policy counts from here on; takes the place of ServiceStarted: allocates the epoch and fences out the one before. policy -> all."""

    kind: ClassVar[str] = "PolicyAttached"
    emitter: ClassVar[Role | None] = "policy"
    name: str
    params: dict[str, Value]
    mode: Literal["active", "shadow"]
    code: str


class PolicyDetached(Event):
    """A policy ends by itself. policy -> all."""

    kind: ClassVar[str] = "PolicyDetached"
    emitter: ClassVar[Role | None] = "policy"
    name: str
    reason: str


class _Verdict(Event):
    target: Target
    answers: int | None
    """The boundary it answers; None: an extra request in mid-cycle, or an amendment."""
    amends: int | None
    """The running swing whose numbers it changes."""
    give_back_at: int
    """Ready samples at which the devices go back."""
    max_lent_s: float
    reason: str
    evidence: dict[str, float]
    """The numbers behind it; compared to 1e-9 relative."""


class SwitchRequested(_Verdict):
    """The active policy's verdict; `target="train"` at a boundary: do not lend. policy -> controller."""

    kind: ClassVar[str] = "SwitchRequested"
    emitter: ClassVar[Role | None] = "policy"


class ShadowVerdict(_Verdict):
    """What a shadow policy would have requested; changes nothing. policy -> monitor."""

    kind: ClassVar[str] = "ShadowVerdict"
    emitter: ClassVar[Role | None] = "policy"
