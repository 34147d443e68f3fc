"""The answers of the samples in flight: which are waiting for a replica, how far they got, and which samples are complete.

waiting (fresh | resumed) ─▶ requested ─▶ stop, length: done
     ▲                                ├─▶ aborted: the partial answer is kept (`partial_rollout`) or started over
     └────────────────────────────────┴─▶ refused, lost, error (up to `max_attempts`): again from the last partial answer
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from bus.events import BlobRef, GenerationFinished, GenerationRequested, RunPlanned
from bus.requests import Outcome
from services.rollouter.routes import Route

MoveReason = Literal["rebalance", "swing", "lost", "update", "error"]
"""Why an answer had to stop where it was: to spread the load, routes were cut, its replica was lost, took new weights, or failed."""


@dataclass
class AnswerState:
    """One answer of a sample in flight."""

    attempt: int = 0
    errors: int = 0
    blob: BlobRef | None = None
    """The answer so far."""
    num_tokens: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    done: bool = False
    ran_out: bool = False
    """It ended because its budget was used up, not by a stop token."""
    last_replica: str = ""
    left_because: MoveReason | None = None


@dataclass
class Group:
    """One sample in flight. `last_error` explains why it failed."""

    answers: list[AnswerState]
    unfinished: int
    failed: bool = False
    last_error: str = ""
    completed_by: int = 0
    """Position of the entry that completed it."""


@dataclass
class Groups:
    """All samples in flight, by number."""

    plan: RunPlanned
    """As it is now."""
    by_sample: dict[int, Group] = field(default_factory=dict)
    resumed: deque[tuple[int, int]] = field(default_factory=deque)
    """(sample, answer) that wait and were generating before: served first, they hold the oldest samples back."""
    fresh: deque[tuple[int, int]] = field(default_factory=deque)
    complete: dict[int, None] = field(default_factory=dict)
    """Samples whose answers are all there, to be scored."""
    failed: dict[int, None] = field(default_factory=dict)
    """Samples to be dropped."""

    @property
    def num_waiting(self) -> int:
        """Answers that wait for a replica."""
        return len(self.resumed) + len(self.fresh)

    def start(self, sample: int) -> None:
        """Takes a prompt: all its answers wait."""
        count = self.plan.rollout_n
        self.by_sample[sample] = Group([AnswerState() for _ in range(count)], count)
        self.fresh.extend((sample, answer) for answer in range(count))

    def remove(self, sample: int) -> None:
        """The sample is complete and scored."""
        self.by_sample.pop(sample, None)
        self.complete.pop(sample, None)
        self.failed.pop(sample, None)

    def drop(self, sample: int) -> None:
        """The sample will not be completed: what of it still waits is forgotten."""
        self.remove(sample)
        self.resumed = deque(waiting for waiting in self.resumed if waiting[0] != sample)
        self.fresh = deque(waiting for waiting in self.fresh if waiting[0] != sample)

    def next_waiting(self) -> tuple[int, int] | None:
        """The (sample, answer) to be routed next."""
        return self.resumed[0] if self.resumed else self.fresh[0] if self.fresh else None

    def requested(self, event: GenerationRequested) -> None:
        """An answer was routed."""
        waiting = (event.sample, event.answer)
        queue = self.resumed if self.resumed and self.resumed[0] == waiting else self.fresh
        if queue and queue[0] == waiting:
            queue.popleft()
        elif waiting in self.resumed:
            self.resumed.remove(waiting)
        elif waiting in self.fresh:
            self.fresh.remove(waiting)
        group = self.by_sample.get(event.sample)
        if group is not None:
            state = group.answers[event.answer]
            state.attempt = event.attempt
            state.last_replica = event.replica

    def finish(self, outcome: Outcome, position: int, reason: MoveReason) -> None:
        """An attempt ended; `reason` says why an answer that goes on had to leave its replica."""
        request, finished = outcome
        group = self.by_sample.get(request.sample)
        if group is None or group.failed:
            return
        state = group.answers[request.answer]
        if finished is None or finished.outcome == "refused":
            self._again(request, state, reason)
        elif finished.outcome == "error":
            self._err(request, group, state, finished)
        elif finished.outcome == "aborted" and finished.num_tokens < self.plan.max_response_length:
            if self.plan.partial_rollout:
                state.blob, state.num_tokens, state.spans = finished.blob, finished.num_tokens, finished.version_spans
            self._again(request, state, reason)
        else:
            state.blob, state.num_tokens, state.spans, state.done = finished.blob, finished.num_tokens, finished.version_spans, True
            state.ran_out = finished.outcome != "stop"
            group.unfinished -= 1
            if group.unfinished == 0:
                group.completed_by = position
                self.complete[request.sample] = None

    def _again(self, request: GenerationRequested, state: AnswerState, reason: MoveReason) -> None:
        state.left_because = reason
        self.resumed.append((request.sample, request.answer))

    def _err(self, request: GenerationRequested, group: Group, state: AnswerState, finished: GenerationFinished) -> None:
        state.errors += 1
        group.last_error = finished.error
        if state.errors < self.plan.max_attempts:
            self._again(request, state, "error")
        else:
            group.failed = True
            self.failed[request.sample] = None


def generation_request(
    request: str, groups: Groups, number: int, answer: int, route: Route, evaluates: int | None = None
) -> GenerationRequested:
    """The next attempt at an answer of `groups`, on a replica; `evaluates`: the version that it is for, if it is no sample's."""
    state = groups.by_sample[number].answers[answer]
    return GenerationRequested(
        request=request,
        attempt=state.attempt + 1,
        replica=route.name,
        epoch=route.epoch,
        swing=route.swing if route.hybrid else 0,
        sample=number,
        answer=answer,
        max_new_tokens=groups.plan.max_response_length - state.num_tokens,
        prefix=state.blob,
        prefix_tokens=state.num_tokens,
        evaluates=evaluates,
    )
