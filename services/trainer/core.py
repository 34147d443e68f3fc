"""When a batch is formed, and what the trainer's shell has to do.

TrainGranted ─▶ enough ready? ── yes ─▶ BatchFormed ─▶ (shell trains) StepDone ─┬─▶ next step
                    └── no ─▶ WaitSamples                                        └─ boundary ─▶ (shell publishes) WeightsPublished
a replica that cannot read weights ─▶ (shell copies them, or makes them again) WeightsShared
YieldRequested ─▶ batch formed, or a boundary opened that it does not answer? ── yes ─▶ YieldRefused
                    └── no ─▶ (shell offloads) DevicesYielded … ReloadRequested ─▶ (shell reloads) DevicesReloaded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.books import Books
from bus.core import Deadline, Request
from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.events import (
    BatchFormed,
    BlobRef,
    CheckpointRequested,
    CheckpointSaved,
    DevicesReloaded,
    DevicesYielded,
    Event,
    ReloadRequested,
    RunEnded,
    SampleDropped,
    SampleReady,
    StepDone,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
    WeightsPublished,
    YieldRefused,
    YieldRequested,
)
from bus.requests import ANSWERING
from services.learner.micro_batches import plan_micro_batches
from services.trainer.kept import KeptCheckpoints
from services.trainer.shares import Shares
from services.trainer.staleness import choose, missing, too_old


@dataclass(frozen=True, slots=True)
class Publish(Request):
    """Publish the current weights as `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Checkpoint(Request):
    """Save the state after `step`, the StepDone (or start) at `position`."""

    step: int
    version: int
    position: int


@dataclass(frozen=True, slots=True)
class Yield(Request):
    """Leave the devices."""

    swing: int


@dataclass(frozen=True, slots=True)
class Reload(Request):
    """Come back to the devices."""

    swing: int


@dataclass(frozen=True, slots=True)
class Train(Request):
    """Train the batch that was formed."""

    batch: BatchFormed
    version: int
    is_boundary: bool


class TrainerCore:
    """See `bus.core.Core`."""

    source = "trainer"

    def __init__(self) -> None:
        self.books = Books()
        self.evaluations = Evaluations(self.books.settings)
        self.shares = Shares(self.books, self.evaluations)
        self.granted = False
        self.home = True
        self.ended = False
        self.kept = KeptCheckpoints()
        self.history: list[BatchFormed] = []
        """Batches that a redo may need."""
        self.payloads: dict[int, BlobRef] = {}
        """Sample -> its payload, of samples that are ready, in a batch, or in `history`."""
        self.publications: dict[int, tuple[int, WeightsPublished]] = {}
        """Version -> (step it was published after, its newest publication), for the same span."""
        self._asked = False
        """WaitSamples was said under this grant for this step."""
        self._yielding: tuple[int, int] | None = None
        """(swing, position) of a YieldRequested without an answer."""
        self._lend_in_mid_cycle = False
        """The newest swing answers no boundary."""
        self._reloading: tuple[int, int] | None = None
        self._publish_cause: int | None = None
        """Position of the boundary's StepDone while its publication is due."""
        self._step_position = 0
        self._checkpoint_due: int | None = None
        """Step whose checkpoint is due."""

    def apply(self, entry: Entry) -> None:
        event = entry.event
        if type(event) in ANSWERING:
            return
        self.books.apply(event)
        self.evaluations.apply(entry)
        self.shares.apply(entry)
        self.kept.apply(event)
        match event:
            case SampleReady():
                self.payloads.setdefault(event.sample, event.blob)
            case SampleDropped():
                self.payloads.pop(event.sample, None)
            case TrainGranted():
                self.granted = True
                self._asked = False
            case WaitSamples():
                self._asked = True
            case BatchFormed():
                self.history.append(event)
                self._asked = False
            case StepDone():
                self._take_step(event, entry.position)
            case WeightsPublished():
                self._take_publication(event)
            case CheckpointSaved():
                self._take_checkpoint(event)
            case CheckpointRequested():
                self._checkpoint_due = self.books.steps_done
            case SwitchStarted():
                # One for an evaluation begins only where no boundary can come in between.
                self._lend_in_mid_cycle = event.answers is None and event.reason != "evaluation"
            case YieldRequested():
                self._yielding = (event.swing, entry.position)
            case DevicesYielded():
                self._yielding = None
                self.granted = False
                self.home = False
            case YieldRefused():
                self._yielding = None
            case ReloadRequested():
                self._reloading = (event.swing, entry.position)
            case DevicesReloaded():
                self._reloading = None
                self.home = True
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _take_step(self, event: StepDone, position: int) -> None:
        self._step_position = position
        if self._checkpoint_due is not None:
            # It was asked for while this step was in training: what it was after is no more.
            self._checkpoint_due = event.step
        if event.is_boundary:
            self.granted = False
            self._publish_cause = position

    def _take_publication(self, event: WeightsPublished) -> None:
        plan = self.books.plan
        assert plan is not None
        known = self.publications.get(event.version)
        if known is None:
            self._publish_cause = None
        # Published again after a redo: it is still of the step it was first published after, and the next version may be due.
        self.publications[event.version] = (self.books.steps_done if known is None else known[0], event)
        if event.version > 0 and (event.version % plan.checkpoint_every_versions == 0 or self.books.last_step_done):
            self._checkpoint_due = self.books.steps_done
        self._forget()

    def _take_checkpoint(self, event: CheckpointSaved) -> None:
        if self._checkpoint_due is not None and self._checkpoint_due <= event.step:
            self._checkpoint_due = None
        self._forget()

    def _forget(self) -> None:
        """What no redo can need."""
        oldest = self.kept.oldest
        if oldest is not None:
            for sample in (sample for batch in self.history if batch.step <= oldest.step for sample in batch.samples):
                self.payloads.pop(sample, None)
            self.history = [batch for batch in self.history if batch.step > oldest.step]
            self.publications = {v: kept for v, kept in self.publications.items() if v >= oldest.version}

    @property
    def is_waiting(self) -> bool:
        """Granted, devices home, and no batch: time that passes now is waiting time of the next step."""
        return self.granted and self.home and self.books.batch is None and not self.ended and not self.books.last_step_done

    def decide(self) -> Event | None:
        if self.ended or self.books.plan is None:
            return None
        if self._yielding is not None and self._must_stay():
            return YieldRefused(swing=self._yielding[0], step=self.books.steps_done + (self.books.batch is not None))
        return self._drop_stale() or self._drop_tail() or self._form_or_wait()

    def _must_stay(self) -> bool:
        """A batch was just formed, or the cycle ended while the controller, a few entries behind, began to lend in its middle."""
        return self.books.batch is not None or (self._lend_in_mid_cycle and not self.granted)

    def _drop_stale(self) -> Event | None:
        stale = too_old(self.books)
        if stale is None or self.books.last_step_done:
            return None
        detail = f"its oldest weights are {stale.oldest_version}, version {self.books.version} is trained"
        return SampleDropped(sample=stale.sample, reason="stale", detail=detail)

    def _drop_tail(self) -> Event | None:
        plan, books = self.books.plan, self.books
        assert plan is not None
        if plan.tail != "drop" or not 0 < len(books.ready) < plan.required_samples:
            return None
        if books.no_more_samples and books.batch is None and not books.last_step_done:
            return SampleDropped(sample=next(iter(books.ready)), reason="tail")
        return None

    def _form_or_wait(self) -> Event | None:
        plan, books = self.books.plan, self.books
        assert plan is not None
        if not self.granted or not self.home or self._yielding is not None or books.batch is not None or books.last_step_done:
            return None
        step, have = books.steps_done + 1, len(books.ready)
        enough = have >= plan.required_samples or (books.no_more_samples and have > 0)
        if not enough and self._asked:
            return None
        chosen = choose(books)
        late = missing(books, chosen)
        if enough and late == 0:
            split = plan_micro_batches([sample.num_tokens for sample in chosen], plan.max_tokens_per_micro_batch)
            return BatchFormed(
                step=step, samples=tuple(sample.sample for sample in chosen), micro_batches=tuple(tuple(part) for part in split)
            )
        need = max(plan.required_samples, have + late if late else 0)
        return None if self._asked else WaitSamples(step=step, need=need, have=have)

    def outstanding(self) -> Sequence[Request]:
        books = self.books
        if books.plan is None:
            return []
        if self.ended:
            # The end comes right after the last publication; the checkpoint of it is what the run leaves behind.
            return self._checkpoint()
        requests: list[Request] = [*self.shares.due(self.home)]
        publishes = self._publication_due()
        if publishes:
            cause = self._publish_cause or self._step_position or 1
            requests.append(Publish(f"publish:{books.version + 1}", cause, books.version + 1))
        requests += [] if publishes else self._checkpoint()
        if self._yielding is not None and not self._must_stay():
            requests.append(Yield(f"yield:{self._yielding[0]}", self._yielding[1], self._yielding[0]))
        if self._reloading is not None:
            requests.append(Reload(f"reload:{self._reloading[0]}", self._reloading[1], self._reloading[0]))
        if books.batch is not None and self.home:
            is_boundary = books.batch.step % books.plan.trigger_parameter_sync_step == 0
            requests.append(Train(f"train:{books.batch.step}", 0, books.batch, books.version, is_boundary))
        return requests

    def _checkpoint(self) -> list[Request]:
        step, position = self.books.steps_done, self._step_position
        if self._checkpoint_due != step or not self.home:
            return []
        return [Checkpoint(f"checkpoint:{step}", position, step, self.books.version, position)]

    def _publication_due(self) -> bool:
        books = self.books
        earned = books.version < 0 or self._publish_cause is not None or (books.last_step_done and books.steps_since_publication > 0)
        # Who was asked to yield may have left already, though the log does not say so yet: then it is published after the return.
        return earned and self.home and self._yielding is None

    def deadlines(self) -> Sequence[Deadline]:
        return []
