"""The trainer as a process: one worker thread owns the learner and performs, in order, what the core lists as outstanding.

core.outstanding(): share ▸ publish ▸ checkpoint ▸ yield ▸ reload ▸ train ──▶ worker ──▶ facts
after a restart:    newest valid checkpoint ▸ redo of every later batch (needs the devices home)
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from bus.blobs import get_blobs
from bus.core import Request
from bus.entry import Entry
from bus.events import BatchFormed, CheckpointSaved, DevicesReloaded, DevicesYielded, Event, StepDone, WeightsPublished
from bus.log import Blobs
from services.advice import advice
from services.agreement import Agreement
from services.context import ServiceContext
from services.launcher.folders import remove_shm_folder
from services.learner.protocol import Learner
from services.learner.wire import AS_TRAINED, as_published
from services.samples import SampleGroup, unpack_group
from services.shell import Facts, Shell
from services.trainer.core import Checkpoint, Publish, Reload, Train, TrainerCore, Yield
from services.trainer.files import CheckpointFiles
from services.trainer.recovery import Recovery
from services.trainer.shares import Share
from services.trainer.sharing import Sharing
from services.trainer.waiting import WaitingClock
from services.transfer.choice import retained_by
from services.transfer.making import TrainersEnd, handing_out
from services.transfer.outlet import Outlet
from services.weights.settings import published_dtype
from services.weights.store import WeightStore

logger = logging.getLogger(__name__)

MakeLearner = Callable[[bool], Learner]
"""Makes the learner in its initial state; the argument: begin offloaded, the devices are lent."""


class TrainerPerformer:
    """See `services.shell.Performer`."""

    def __init__(
        self,
        core: TrainerCore,
        make_learner: MakeLearner,
        store: WeightStore,
        files: CheckpointFiles,
        blobs: Blobs,
        dtype: str = AS_TRAINED,
        outlet: Outlet | None = None,
    ) -> None:
        """`dtype`: of what is published (`services.learner.wire`). `outlet`: what hands it out directly, too."""
        self._outlet = outlet
        self._core = core
        self._dtype = dtype
        self._make_learner = make_learner
        self._store = store
        self._files = files
        self._blobs = blobs
        self._shell: Shell | None = None
        self._jobs: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._begun: dict[str, None] = {}
        self._waiting = WaitingClock(time.monotonic)
        self._learner: Learner | None = None
        self._agreement = Agreement()
        self._sharing = Sharing(core, store, self._jobs.put)
        self._recovery = Recovery(core, files, self._sharing, self._groups, self._publish)
        self._restored = False
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)

    @property
    def shell(self) -> Shell:
        assert self._shell is not None
        return self._shell

    def recovered(self, shell: Shell) -> None:
        self._shell = shell
        self._sharing.recovered(shell)
        self._thread.start()

    def prepare(self, events: Sequence[Event]) -> None:
        pass

    def look(self, entries: Sequence[Entry]) -> None:
        self._waiting.look(self._core.is_waiting)
        outstanding = {request.key: request for request in (*self._sharing.requests(), *self._core.outstanding())}.values()
        self._begun = {request.key: None for request in outstanding if request.key in self._begun}
        for request in outstanding:
            if request.key not in self._begun and self._begin(request):
                self._begun[request.key] = None

    def _begin(self, request: Request) -> bool:
        """False: it cannot be begun yet."""
        if isinstance(request, Share):
            if self._sharing.begin(request):
                return True
            if not self._core.home:
                return False
        self._jobs.put(request)
        return True

    def durable(self, position: int) -> int:
        """A successor begins with the newest checkpoint and trains again what comes after it."""
        checkpoints = self._core.kept.saved
        return min(position, checkpoints[-1].position) if checkpoints else 0

    def close(self) -> None:
        """What was begun is finished, as far as that takes no longer than a supervisor waits."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=15.0)

    def _work(self) -> None:
        try:
            while (request := self._jobs.get()) is not None:
                self._post(self._perform(request))
                self._tidy(request)
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self.shell.fail(error)
        finally:
            if self._learner is not None:
                self._learner.close()

    def _post(self, facts: Facts) -> None:
        if facts:
            self.shell.post(facts)

    def _perform(self, request: Request) -> Facts:
        match request:
            case Yield():
                return self._yield(request)
            case Reload():
                return self._reload(request)
            case Share():
                restored = self._restore()
                return [*restored, *self._sharing.settle(request, restored)]
            case Publish():
                return [*self._restore(), (self._publish(request.version, 0), request.cause)]
            case Checkpoint():
                return [*self._restore(), *self._save(request)]
            case Train():
                # Replicas may wait for weights that are back, which is not to wait for a step.
                self._post(self._restore())
                return [(self._train(request), self.shell.host.decided_at.get("BatchFormed", 0))]
            case _:
                raise NotImplementedError(request)

    # --- what a trainer does with its learner ----------------------------------------------------------------------------------------

    def _learner_or_new(self, offloaded: bool) -> Learner:
        if self._learner is None:
            self._learner = self._make_learner(offloaded)
        return self._learner

    def _yield(self, request: Yield) -> Facts:
        began = time.monotonic()
        restored = self._restore()
        self._learner_or_new(offloaded=False).offload()
        return [*restored, (DevicesYielded(swing=request.swing, seconds=time.monotonic() - began), request.cause)]

    def _reload(self, request: Reload) -> Facts:
        began = time.monotonic()
        self._learner_or_new(offloaded=True).reload()
        restored = self._restore()
        return [*restored, (DevicesReloaded(swing=request.swing, seconds=time.monotonic() - began), request.cause)]

    def _publish(self, version: int, revision: int) -> WeightsPublished:
        learner = self._learner_or_new(offloaded=False)
        learner.begin_cycle()
        machine, epoch = self.shell.context.machine, self.shell.host.producer.epoch
        weights, beyond = as_published(learner.weights(), self._dtype), self._core.shares.reach.is_beyond(machine)
        notice = self._store.publish(weights, version, revision, epoch, beyond=beyond)
        return WeightsPublished(
            version=version, revision=revision, transport=notice.transport, uri=notice.uri, digest=notice.digest,
            num_bytes=notice.num_bytes, seconds=notice.seconds, dtype=self._dtype, delta=notice.delta,
            direct=None if self._outlet is None else self._outlet.announce(notice, beyond=beyond),
            machine=machine if notice.transport == "shm" else "",
        )  # fmt: skip

    def _save(self, request: Checkpoint) -> Facts:
        began, learner = time.monotonic(), self._learner_or_new(offloaded=False)
        if learner.step != request.step:
            # Asked for while the next step was in training: the core asks for one after that.
            return []
        folder = self._files.folder(self.shell.host.producer.epoch, request.step)
        learner.save(folder)
        saved = CheckpointSaved(
            step=request.step, version=request.version, position=request.position, uri=folder.as_uri(), digest="",
            seconds=time.monotonic() - began,
        )  # fmt: skip
        return [(saved, request.cause)]

    def _train(self, request: Train) -> StepDone:
        began = time.monotonic()
        groups = self._groups(request.batch)
        loaded = time.monotonic()
        report = self._learner_or_new(offloaded=False).train(request.batch.step, groups, request.batch.micro_batches)
        seconds = {"wait": self._waiting.take(), "load": loaded - began, "train": time.monotonic() - loaded, **report.seconds}
        done = StepDone(
            step=request.batch.step, version=request.version, is_boundary=request.is_boundary, num_samples=len(groups),
            seconds=seconds, metrics=dict(report.metrics),
        )  # fmt: skip
        self._warn_of_disagreement(done)
        return done

    def _warn_of_disagreement(self, done: StepDone) -> None:
        plan = self._core.books.plan
        assert plan is not None, "a batch is formed after the plan"
        if (found := self._agreement.apply(done, plan.max_logprob_diff)) is not None:
            logger.warning("%s: %s", found, found.advice)

    def _groups(self, batch: BatchFormed) -> list[SampleGroup]:
        refs = [self._core.payloads[sample] for sample in batch.samples]
        return [unpack_group(data) for data in get_blobs(self._blobs, refs)]

    def _restore(self) -> Facts:
        """Brings the learner to where the log is, once after a restart."""
        if self._restored:
            return []
        facts = self._recovery.restore(self._learner_or_new(offloaded=False), self.shell.position)
        self._restored = True
        return facts

    def _tidy(self, request: Request) -> None:
        """Removes what nobody can need any more: older weights, and checkpoints that are not kept."""
        if isinstance(request, Publish) and self._core.books.publication is not None:
            self._store.retire({self._core.books.publication.uri, *self._core.evaluations.needed_uris})
        if isinstance(request, Checkpoint):
            self._files.keep({saved.uri for saved in self._core.kept.saved})


def main(context: ServiceContext) -> None:
    """Runs the trainer until the run has ended."""
    config = context.config
    for text in advice(config):
        logger.warning("%s", text)
    core = TrainerCore()
    retained = retained_by(config.weights.transport, shared_folder=config.weights.folder is not None)
    store = WeightStore(context.run, retained, context.weights_folder, delta=config.weights.delta)
    files = CheckpointFiles(context.folder / "checkpoints")
    end = TrainersEnd(context.url, context.machine, context.placed)
    with handing_out(config, context.plan.devices, end, context.open_blobs) as outlet:
        performer = TrainerPerformer(core, context.make_learner, store, files, context.open_blobs(), published_dtype(config), outlet)
        Shell(context, core, performer).run()
    if core.ended and not context.supervised:
        remove_shm_folder(context.run)  # `swingshift run` does it otherwise
