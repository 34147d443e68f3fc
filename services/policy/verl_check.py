"""Recorded decisions through a file that was written for verl: each trace by the class that the file registers under the policy's name."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from bus.errors import ConfigError, PolicyFailed
from policies.check import Decided, Decider, Step, Trace, shape_of
from services.policy.verl import start
from services.policy.verl_calls import Boundary, Lent, Made, VerlCalls
from services.policy.verl_making import settings_of
from services.policy.verl_process import VerlProcess


class VerlDecider:
    """Decides the steps of one trace."""

    def __init__(self, name: str, process: VerlProcess, trace: Trace) -> None:
        self._shape = shape_of(trace)
        self._calls = VerlCalls(process)
        settings = settings_of(name, process.arguments, trace.params)
        shape = self._shape
        made = Made(tuple(settings.items()), shape.required_samples, shape.trigger_parameter_sync_step, shape.only_hybrid)
        self._calls.made(made)
        self._wait_samples: int | None = None

    def decide(self, step: Step) -> Decided:
        seen, wait_samples = step.boundary, self._wait_samples
        activate = self._calls.boundary(
            Boundary(
                step.version,
                seen.total_generated_samples,
                seen.expected_samples,
                self._shape.buffer_samples,
                seen.wait_times_s,
                seen.wait_samples,
                seen.deactivate_duration_s,
            )
        )
        self._wait_samples = None
        if activate:
            _, self._wait_samples = self._calls.lent(Lent(seen.activate_duration_s, rebalances=True))
        self._calls.finish()
        ratio = self._calls.ratio
        return Decided(wait_samples, activate, nan if ratio is None else ratio)


def verl_deciders(file: str, source: str) -> Callable[[Trace], Decider]:
    """Makes the decider of each trace; a class has one process for all its traces. `source`: the file's text. It raises ConfigError."""
    processes: dict[str, VerlProcess] = {}

    def make(trace: Trace) -> Decider:
        name = f"{file}:{trace.policy}"
        try:
            if trace.policy not in processes:
                processes[trace.policy] = start(name, source)
            return VerlDecider(name, processes[trace.policy], trace)
        except PolicyFailed as error:
            raise ConfigError(f"policy {name}: {error}") from error

    return make
