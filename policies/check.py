"""Replays a file of recorded decisions through the rules that run live, or another decider, and names the first difference.

The file holds traces, each one run of one policy; each step of a trace is a boundary, in order:

    step_start   when the cycle before this boundary began: is the policy asked to give back, and at how many ready samples?
                 It is asked exactly when the boundary before lent (so never in a trace's first step).
    boundary     what the policy sees.   expect: what it must answer (`activate`), and its ratio after the update.

`activate_duration_s` is the lend that this very boundary decided: the update sees it, the decision does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isclose
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.errors import ConfigError
from bus.events import Value
from policies.registry import create
from policies.rule import BoundaryContext, Rule, RulePolicy
from policies.view import RunShape

RELATIVE = 1e-9
"""Tolerance of ratios; answers and sample counts are compared exactly."""


class _Recorded(BaseModel):
    # Files of others may say more than is needed here.
    model_config = ConfigDict(frozen=True, extra="ignore")


class StepStart(_Recorded):
    """The question when a cycle begins."""

    should_deactivate: bool
    wait_samples: int | None


class SeenBoundary(_Recorded):
    """What the policy saw."""

    total_generated_samples: int
    expected_samples: int
    wait_times_s: tuple[float, ...]
    wait_samples: tuple[int, ...]
    activate_duration_s: float
    deactivate_duration_s: float


class Expected(_Recorded):
    """What it answered."""

    activate: bool
    deactivate_ratio_after: float


class Step(_Recorded):
    """One cycle and the boundary at its end."""

    version: int
    step_start: StepStart
    boundary: SeenBoundary
    expect: Expected


class Run(_Recorded):
    """Settings of the run."""

    required_samples: int = Field(ge=1)
    trigger_parameter_sync_step: int = Field(ge=1)
    staleness_threshold: float = Field(ge=0)


class Trace(_Recorded):
    """One run of one policy."""

    policy: str
    params: dict[str, Value]
    run: Run
    steps: tuple[Step, ...]


class DecisionFile(_Recorded):
    """A whole file."""

    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a rule answers otherwise than recorded. `trace` counts from 0."""

    trace: int
    policy: str
    version: int
    what: str
    expected: object
    got: object

    def __str__(self) -> str:
        place = f"trace {self.trace} ({self.policy}), version {self.version}"
        return f"{place}: {self.what} should be {self.expected}, is {self.got}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was compared, and the first difference, if any. A trace ends at its first difference; the others are compared all the same."""

    traces: int
    boundaries: int
    """Boundaries at which everything agreed."""
    traces_differing: int
    first: Difference | None


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided in one step."""

    wait_samples: int | None
    """Ready samples at which the devices were to go back in the cycle before the boundary; None: they were not lent, or were to stay."""
    activate: bool
    ratio_after: float


class Decider(Protocol):
    """Decides the steps of one trace, one after the other."""

    def decide(self, step: Step) -> Decided:
        """The next step."""


def check_decisions(text: str | bytes, decider: Callable[[Trace], Decider] | None = None) -> CheckResult:
    """Compares a file's content with what the rules decide, or a `decider` that is made for each trace.

    Raises ConfigError when it is no such file or names an unknown policy.
    """
    try:
        recorded = DecisionFile.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise ConfigError(f"no file of recorded decisions, {where}: {problem['msg']} ({error.error_count()} such errors)") from error
    boundaries = differing = 0
    first: Difference | None = None
    for index, trace in enumerate(recorded.traces):
        difference = None
        for difference in _replay(index, trace, (decider or RuleDecider)(trace)):
            if difference is not None:
                break
            boundaries += 1
        if difference is not None:
            differing += 1
            first = first or difference
    return CheckResult(len(recorded.traces), boundaries, differing, first)


class RuleDecider:
    """Decides by our own rules."""

    def __init__(self, trace: Trace) -> None:
        policy = create(trace.policy, trace.params)
        if not isinstance(policy, RulePolicy):
            raise ConfigError(f"policy {trace.policy} has no ratio, so its decisions cannot be checked by a file of this format")
        self._rule: Rule = policy.rule
        self._shape = shape_of(trace)
        self._lent = False

    def decide(self, step: Step) -> Decided:
        seen, rule, shape = step.boundary, self._rule, self._shape
        expected = shape.expected_samples(step.version)
        context = BoundaryContext(shape, step.version, seen.total_generated_samples, expected, seen.wait_times_s, seen.wait_samples)
        decision = rule.decide(context)
        following = rule.updated(context)
        if step.version > 0:
            following = following.with_cost(seen.activate_duration_s + seen.deactivate_duration_s)
        decided = Decided(rule.give_back_at(shape) if self._lent else None, decision.lend, following.ratio_in(shape))
        self._rule, self._lent = following, decision.lend
        return decided


def shape_of(trace: Trace) -> RunShape:
    """The run's numbers in a trace."""
    run = trace.run
    return RunShape(
        run.required_samples, run.trigger_parameter_sync_step, run.staleness_threshold, only_hybrid=trace.params.get("only_hybrid") is True
    )


def _replay(index: int, trace: Trace, decider: Decider) -> Iterator[Difference | None]:
    """One item a step: its first difference, or None."""
    shape = shape_of(trace)
    for step in trace.steps:
        decided = decider.decide(step)
        ratio, expected_ratio = decided.ratio_after, step.expect.deactivate_ratio_after
        gives_back = decided.wait_samples is not None
        compared: tuple[tuple[str, object, object, bool], ...] = (
            ("step_start.should_deactivate", step.step_start.should_deactivate, gives_back, False),
            ("step_start.wait_samples", step.step_start.wait_samples, decided.wait_samples, False),
            ("boundary.expected_samples", step.boundary.expected_samples, shape.expected_samples(step.version), False),
            ("expect.activate", step.expect.activate, decided.activate, False),
            ("expect.deactivate_ratio_after", expected_ratio, ratio, isclose(ratio, expected_ratio, rel_tol=RELATIVE, abs_tol=RELATIVE)),
        )
        yield next(
            (
                Difference(index, trace.policy, step.version, what, expected, got)
                for what, expected, got, is_close in compared
                if expected != got and not is_close
            ),
            None,
        )
