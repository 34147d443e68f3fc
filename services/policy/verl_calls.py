"""In which order verl's trainer calls a policy, and with what: here driven by the moments that a log tells.

    a cycle:   a step begins ──▶ should_deactivate(v) ▸ deactivate_wait_samples, if it said yes          (each step; lent: the first one)
    boundary v ──▶ should_activate_after_step(v)    the context: samples, waits and the return of the cycle that is over
               ├─▶ lent ──▶ request_rebalance(v), if that is on ▸ update_after_step(v), which sees the lend's seconds ▸ a step begins
               └─▶ not lent ──▶ update_after_step(v) ▸ a step begins …

A boundary that led to no lend is known to be one when the next comes, so its update and the steps in between are called then: in this
order, with this context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from bus.events import Value


class Asked(Protocol):
    """Who carries out the calls (`verl_process.VerlProcess`)."""

    def ask(self, question: str, *arguments: object) -> object:
        """See `verl_child.Runner`."""


@dataclass(frozen=True, slots=True)
class Made:
    """A policy begins."""

    settings: tuple[tuple[str, Value], ...]
    required_samples: int
    trigger_parameter_sync_step: int
    only_hybrid: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """A cycle is over."""

    version: int
    generated: int
    expected: int
    buffer: float
    wait_s: tuple[float, ...]
    wait_n: tuple[int, ...]
    deactivation_s: float


@dataclass(frozen=True, slots=True)
class Lent:
    """The devices have been lent."""

    seconds: float
    rebalances: bool
    """Policies may ask for a rebalance."""


class VerlCalls:
    """Calls one policy's methods, moment by moment."""

    def __init__(self, process: Asked) -> None:
        self._process = process
        self._version = 0
        self._to_update = False
        """The newest boundary's update has not been called: it may lead to a lend yet."""
        self._steps_begun = 0

    def made(self, moment: Made) -> None:
        """The constructor, as verl's trainer calls it."""
        numbers = moment.required_samples, moment.trigger_parameter_sync_step, moment.only_hybrid
        self._process.ask("make", dict(moment.settings), *numbers)

    def boundary(self, moment: Boundary) -> bool:
        """Are the devices to be lent?"""
        self.finish()
        for _ in range(len(moment.wait_s) - self._steps_begun):
            self._process.ask("begin_step", self._version, False)
        self._version, self._to_update, self._steps_begun = moment.version, True, 0
        changes = {
            "total_generated_samples": moment.generated,
            "expected_samples": moment.expected,
            "buffer_samples": moment.buffer,
            "step_wait_times": moment.wait_s,
            "step_wait_samples": moment.wait_n,
            "last_activate_duration_s": 0.0,
            "last_deactivate_duration_s": moment.deactivation_s,
        }
        return cast(bool, self._process.ask("activate", moment.version, False, changes))

    def peek(self, seconds: float) -> int | None:
        """For how many ready samples would it want devices back that are lent now, in so many seconds? None: for none. Changes nothing."""
        return cast("int | None", self._process.ask("peek", self._version, seconds, self._to_update))

    def lent(self, moment: Lent) -> tuple[bool, int | None]:
        """Are the requests to be spread anew? And for how many ready samples does it want the devices back (None: not at all)?"""
        rebalance = moment.rebalances and cast(bool, self._process.ask("rebalance", self._version))
        self.finish(moment.seconds)
        self._steps_begun += 1
        return rebalance, cast("int | None", self._process.ask("begin_step", self._version, True))

    def finish(self, activation_s: float = 0.0) -> None:
        """The newest boundary is over: its update, if that was not called yet. `activation_s`: seconds of the lend that it led to."""
        if self._to_update:
            self._to_update = False
            self._process.ask("update", self._version, activation_s)

    @property
    def ratio(self) -> float | None:
        """The share of a cycle at which it gives back, if it has an attribute `deactivate_ratio`."""
        return cast("float | None", self._process.ask("ratio"))

    def again(self, moment: Boundary | Lent) -> None:
        """A moment of before, for a policy that has to get to where it was."""
        if isinstance(moment, Boundary):
            self.boundary(moment)
        else:
            self.lent(moment)
