"""Plans, events and drafts for tests of the bus."""

from __future__ import annotations

from collections.abc import Sequence

from bus.entry import Draft
from bus.events import Event, GenerationRequested, RunPlanned, ServiceStarted, StepDone, WaitSamples


def plan(run: str) -> RunPlanned:
    return RunPlanned(
        run=run, seed=7, total_steps=4, required_samples=8, trigger_parameter_sync_step=2, staleness_threshold=0.5, rollout_n=4,
        max_prompt_length=32, max_response_length=64,
    )  # fmt: skip


def started(code: str = "abc") -> ServiceStarted:
    return ServiceStarted(code=code, host="here", pid=1)


def step_done(step: int) -> StepDone:
    return StepDone(step=step, version=0, is_boundary=False, num_samples=8, seconds={"train": 0.5}, metrics={"réward/µ": 0.25})


def wait_samples(have: int) -> WaitSamples:
    return WaitSamples(step=1, need=8, have=have)


def generation(request: str, replica: str) -> GenerationRequested:
    return GenerationRequested(request=request, attempt=1, replica=replica, epoch=1, swing=0, sample=1, answer=1, max_new_tokens=64)


def fact(event: Event, at: int = 1, cause: int = 0) -> Draft:
    return Draft(event, derived=False, cause=cause, at=at)


def steps(first: int, count: int) -> Sequence[Draft]:
    """`count` facts, each with a number and a time of its own."""
    return [fact(step_done(number), at=number) for number in range(first, first + count)]
