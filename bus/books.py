"""The books: where every sample is, folded from the log. All cores share this one fold.

    started ──▶ in flight ──▶ ready ──▶ in a batch ──▶ trained
                    └──────────┴───▶ dropped (failed | filtered | stale | evicted | tail)

Staleness limit: in flight + ready + in a batch or trained since the last publication <= S * (1 + staleness_threshold).
A dropped sample frees its place in the same entry. A limit that is lowered on the live run ends no sample: none is started until they fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from bus.events import (
    BatchFormed,
    BlobRef,
    Event,
    PromptsExhausted,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    SettingChanged,
    StepDone,
    StopRequested,
    WeightsPublished,
)
from bus.settings import Settings


@dataclass(frozen=True, slots=True)
class ReadySample:
    """What the trainer knows of a sample that waits for it."""

    sample: int
    num_tokens: int
    oldest_version: int
    blob: BlobRef


class Books:
    """Fold of the sample and step events. Feed it every event once, in order; `plan` is there after the first one."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.plan: RunPlanned | None = None
        """As it is now, with the settings that were changed on the live run."""
        self.started = 0
        """Prompts taken; the next one has this number."""
        self.in_flight: dict[int, int] = {}
        """Sample -> newest published version when it was started: its tokens are of no older weights."""
        self.ready: dict[int, ReadySample] = {}
        """In log order of their SampleReady."""
        self.batch: BatchFormed | None = None
        """Formed and not yet trained."""
        self.trained = 0
        self.dropped: dict[str, int] = {}
        self.used_since_publication = 0
        """Samples in a batch formed since the last publication."""
        self.steps_done = 0
        self.steps_since_publication = 0
        self.version = -1
        """Newest published version; -1 before the first."""
        self.publication: WeightsPublished | None = None
        self.exhausted = False
        self.stop_requested = False

    @property
    def staleness_threshold(self) -> float:
        """As it is now; 0 before there is a plan."""
        return 0.0 if self.plan is None else self.plan.staleness_threshold

    @property
    def limit(self) -> int:
        """Most samples that may be outstanding at a time."""
        assert self.plan is not None
        return floor(self.plan.cycle_samples * (1 + self.plan.staleness_threshold))

    @property
    def room(self) -> int:
        """Samples that may be started now under the staleness limit."""
        return max(0, self.limit - len(self.in_flight) - len(self.ready) - self.used_since_publication)

    @property
    def prompts_left(self) -> int:
        """Prompts of the plan not yet taken; for an unbounded plan, more than any limit."""
        assert self.plan is not None
        return (1 << 53) - self.started if self.plan.num_prompts is None else self.plan.num_prompts - self.started

    @property
    def startable(self) -> int:
        """Samples that can still be started before the next publication."""
        return 0 if self.stop_requested else min(self.room, self.prompts_left)

    @property
    def generated(self) -> int:
        """Samples that became usable since the run began: ready, in a batch, or trained; dropped ones not counted (G)."""
        in_batch = len(self.batch.samples) if self.batch is not None else 0
        return len(self.ready) + in_batch + self.trained

    @property
    def no_more_samples(self) -> bool:
        """No sample is in flight and none will be started: what is ready now is all there will be."""
        return not self.in_flight and self.prompts_left <= 0

    @property
    def last_step_done(self) -> bool:
        """No further step will be trained."""
        assert self.plan is not None
        if self.batch is not None:
            return False
        return self.steps_done >= self.plan.total_steps or self.stop_requested or (not self.ready and self.no_more_samples)

    @property
    def finished(self) -> bool:
        """The last step is done and its weights are published."""
        return self.steps_since_publication == 0 and self.version >= 0 and self.last_step_done

    def apply(self, event: Event) -> None:
        """Takes in one event; others than those of the books are ignored."""
        match event:
            case SampleStarted():
                self.in_flight[event.sample] = event.version
                self.started = max(self.started, event.sample + 1)
            case SampleReady():
                if self.in_flight.pop(event.sample, None) is not None:
                    self.ready[event.sample] = ReadySample(event.sample, event.num_tokens, event.oldest_version, event.blob)
            case SampleDropped():
                self._drop(event)
            case BatchFormed():
                if event.step > self.steps_done and self.batch is None:
                    self._form(event)
            case StepDone():
                if event.step == self.steps_done + 1:
                    self._finish_step(event)
            case WeightsPublished():
                self._publish(event)
            case RunPlanned() | SettingChanged():
                self.settings.apply(event)
                self.plan = self.settings.plan
            case PromptsExhausted():
                self.exhausted = True
            case StopRequested():
                self.stop_requested = True
            case _:
                pass

    def _drop(self, event: SampleDropped) -> None:
        was_in_flight = self.in_flight.pop(event.sample, None) is not None
        was_ready = self.ready.pop(event.sample, None) is not None
        if was_in_flight or was_ready:
            self.dropped[event.reason] = self.dropped.get(event.reason, 0) + 1

    def _form(self, event: BatchFormed) -> None:
        self.batch = event
        for sample in event.samples:
            self.ready.pop(sample, None)
        self.used_since_publication += len(event.samples)

    def _finish_step(self, event: StepDone) -> None:
        assert self.batch is not None, "StepDone without BatchFormed"
        self.trained += len(self.batch.samples)
        self.batch = None
        self.steps_done = event.step
        self.steps_since_publication += 1

    def _publish(self, event: WeightsPublished) -> None:
        if event.version > self.version:
            self.steps_since_publication = 0
            self.used_since_publication = 0
        self.version = event.version
        self.publication = event
