"""Events of a policy, and of the requests to change which one counts.

PolicyAttached ▸ (boundary v opens) ▸ SwitchRequested(answers=v) … ▸ PolicyDetached        a shadow: ShadowVerdict
operator: PolicyRequested ─▶ a candidate that has warmed up: PolicyAttached(request)        or PolicyRefused(request), and nothing changed
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bus.events.base import Event, Role, Target, Value

MAX_POLICY_SOURCE_BYTES = 64 * 1024
"""Most that the text of a policy from a file may take in an entry."""


class PolicyRequested(Event):
    """Another policy is to be active, or to watch; or a shadow is to end. operator -> whoever keeps the run's policy processes."""

    kind: ClassVar[str] = "PolicyRequested"
    emitter: ClassVar[Role | None] = "operator"
    action: Literal["swap", "shadow", "promote", "rollback", "detach"]
    """promote: what the shadow `label` runs becomes active, and the shadow ends; rollback: what was active before the present one."""
    name: str = ""
    """Of the policy that is to start: a built-in one, or `path/file.py:ClassName`; empty for `detach`."""
    params: dict[str, Value] = Field(default_factory=dict)
    source: str = ""
    """Text of the file that it is from; empty for a built-in one."""
    label: str = ""
    """The shadow: to start under this label (empty: it is chosen), to promote, or to end."""


class PolicyRefused(Event):
    """Nothing was changed for a PolicyRequested. supervisor (the policy service under `serve`) -> operator."""

    kind: ClassVar[str] = "PolicyRefused"
    request: int
    """Position of the PolicyRequested."""
    name: str
    label: str = ""
    stage: Literal["load", "warm_up", "answer", "attach"]
    """How far it came: its code was loaded, it took in the log, it answered in trial, it attached."""
    detail: str

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("supervisor", "policy")


class PolicyAttached(Event):
    """A policy counts from here on; takes the place of ServiceStarted: allocates the epoch and fences out the one before. policy -> all."""

    kind: ClassVar[str] = "PolicyAttached"
    emitter: ClassVar[Role | None] = "policy"
    name: str
    params: dict[str, Value]
    mode: Literal["active", "shadow"]
    code: str
    request: int = 0
    """Position of the PolicyRequested that it answers; 0: the plan asked for it. A restart repeats it."""
    label: str = ""
    """A shadow's: its log source is `policy:LABEL`."""
    source: str = ""
    """Text of the file that it is from; empty for a built-in one."""
    token: str = ""
    """What whoever started this process gave it to be known by; empty: nothing."""


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
