"""The trainer of a simulated run: its learner is a digest, and its weights lie on a machine or in the shared folder."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING

from bus.core import Request
from bus.events import (
    CheckpointSaved,
    DevicesReloaded,
    DevicesYielded,
    Event,
    ServiceStarted,
    StepDone,
    WeightsPublished,
    WeightsShared,
)
from services.trainer.core import Checkpoint, Publish, Reload, Train, TrainerCore, Yield
from services.trainer.shares import Share
from tests.simulation.deltas import WHOLE_BYTES
from tests.simulation.services import Facts, SimService

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimTrainer(SimService):
    """Its learner is a digest of everything trained; it loses it with its process and redoes it from checkpoint and log."""

    def __init__(self, world: World, core: TrainerCore, started: ServiceStarted) -> None:
        super().__init__(world, core, started)
        self.trainer = core
        self._state: tuple[int, str] | None = None
        self._base: tuple[int, str] | None = None
        """(version, digest) that it published last."""
        self._told: Facts = []
        """Weights that are back, and not said to be yet."""

    def to_do(self) -> list[Request]:
        to_do = super().to_do()
        shares = [request for request in to_do if isinstance(request, Share)]
        return [*self._gone(), *shares, *[request for request in to_do if request not in shares][:1]]

    def outcome(self, request: Request) -> Facts:
        facts = self._outcome(request)
        told, self._told = self._told, []
        return [*told, *facts]

    def _outcome(self, request: Request) -> Facts:
        match request:
            case Share():
                return self._share(request)
            case Yield():
                self._restore()
                return [(DevicesYielded(swing=request.swing, seconds=0.0), request.cause)]
            case Reload():
                self._restore()
                return [(DevicesReloaded(swing=request.swing, seconds=0.0), request.cause)]
            case Publish():
                return [(self._publish(request), request.cause)]
            case Checkpoint():
                return self._save(request)
            case Train():
                return [(self._train(request), max(1, request.cause))]
            case _:
                raise NotImplementedError(request)

    def _share(self, request: Share) -> Facts:
        """Copied from memory, or made again, which needs the devices."""
        weights = request.weights
        if self.world.nodes.lacks(weights.uri, self.node):
            restored = self._state is not None
            self._restore()
            if self.world.nodes.lacks(weights.uri, self.node):
                is_newest = weights == self.trainer.books.publication
                assert not is_newest, f"weights {weights.uri} cannot be made again, restored before: {restored}"
            return []
        self.world.nodes.into_folder(weights.uri)
        return [(shared(weights), request.cause)]

    def _gone(self) -> list[Share]:
        """What was lost with a machine is made again as soon as the devices are home, whether or not a replica waits for it."""
        shares = self.trainer.shares
        if not self.trainer.home or self._state is not None:
            return []
        return [shares.of(weights) for weights in shares.needed if self.world.nodes.lacks(weights.uri, self.node)]

    def _restore(self) -> tuple[int, str]:
        """Newest checkpoint that is whole and in this log, then redo; compared at each published digest."""
        if self._state is not None:
            return self._state
        step, digest = 0, "initial"
        published, needed = dict(self.trainer.publications.values()), self.trainer.shares.needed
        lost = {step: made for step, made in published.items() if made in needed and self.world.nodes.lacks(made.uri, self.node)}
        for saved in reversed(self.trainer.kept.saved):
            if saved.uri in self.world.disk and all(saved.step <= gone for gone in lost):
                step, digest = saved.step, self.world.disk[saved.uri]
                break
        self._put_back(lost.get(step))
        for batch in self.trainer.history:
            if step < batch.step <= self.trainer.books.steps_done:
                assert batch.step == step + 1, f"the redo skips from step {step} to {batch.step}"
                step, digest = batch.step, learn(digest, batch.samples)
                weights = published.get(step)
                assert weights is None or weights.digest == digest, f"the redo of step {step} diverged"
                self._put_back(lost.get(step))
        assert step == self.trainer.books.steps_done, f"restored step {step}, the log is at {self.trainer.books.steps_done}"
        self._state = (step, digest)
        return self._state

    def _put_back(self, weights: WeightsPublished | None) -> None:
        if weights is not None:
            self.world.nodes.into_folder(weights.uri)
            self._told.append((shared(weights), self.position))

    def _publish(self, request: Publish) -> Event:
        _, digest = self._restore()
        newest, uri = self.trainer.books.publication, f"w{self.epoch}-{request.version}"
        kept = {uri, *self.trainer.evaluations.needed_uris, *([newest.uri] if newest is not None else [])}
        nodes, beyond = self.world.nodes, self.trainer.shares.reach.is_beyond(self.world.nodes.name(self.node))
        nodes.publish(uri, self.epoch, None if beyond else self.node)
        nodes.keep(kept, self.epoch)
        delta, self._base = self.world.deltas.publish(self._base, request.version, digest), (request.version, digest)
        return WeightsPublished(
            version=request.version, revision=0, transport="file" if beyond else "shm", uri=uri, digest=digest, num_bytes=WHOLE_BYTES,
            seconds=0.0, machine="" if beyond else nodes.name(self.node), delta=delta,
            direct=self.world.directs.publish(self.epoch),
        )  # fmt: skip

    def _save(self, request: Checkpoint) -> Facts:
        step, digest = self._restore()
        if step != request.step:
            return []
        uri = f"checkpoint-{self.epoch}-{step}"
        if self.random.random() >= self.world.faults.torn_checkpoint:
            self.world.disk[uri] = digest
        saved = CheckpointSaved(step=step, version=request.version, position=request.position, uri=uri, digest=digest, seconds=0.0)
        return [(saved, request.cause)]

    def _train(self, request: Train) -> Event:
        step, digest = self._restore()
        batch = request.batch
        assert batch.step == step + 1, f"asked to train step {batch.step} after {step}"
        self._state = (batch.step, learn(digest, batch.samples))
        return StepDone(
            step=batch.step,
            version=request.version,
            is_boundary=request.is_boundary,
            num_samples=len(batch.samples),
            seconds={"wait": float(self.random.randint(0, 3)), "train": 1.0},
            metrics={},
        )


def shared(weights: WeightsPublished) -> WeightsShared:
    """They lie in the folder, too."""
    return WeightsShared(version=weights.version, revision=weights.revision, uri=weights.uri, num_bytes=WHOLE_BYTES, seconds=0.0)


def learn(digest: str, samples: tuple[int, ...]) -> str:
    """The scripted learner."""
    return sha1(f"{digest}{samples}".encode()).hexdigest()[:12]
