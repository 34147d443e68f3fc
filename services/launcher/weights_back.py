"""Makes published weights loadable again before a run goes on without its shared memory: from a checkpoint, else by training again.

The work is done in a process of its own, so that the supervisor never loads torch:

    put_weights_back ──versions──▶ python -m services.launcher.weights_back ──progress, results──▶ put_weights_back

Weights that come out of the redo other than they were published are told, not written: what they mean is for the caller to say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bus.errors import CheckpointError, ConfigError, SwingshiftError
from bus.events import BatchFormed, RunPlanned, WeightsPublished
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from services.devices import as_far_as_here, this_machine
from services.launcher.child import ChildFailed, run_child, say
from services.learner.environment import set_threads
from services.machine import machine_id
from services.places import checkpoint_folder, published_file

if TYPE_CHECKING:
    from services.learner.protocol import Learner
    from services.learner.redo import TrainedSteps
    from services.samples import SampleGroup

_PROGRESS, _DIFFERS = "progress", "differs"

Progress = Callable[[int, int], None]
"""Steps trained again so far, and all of them."""


@dataclass(frozen=True, slots=True)
class Differing:
    """A version whose weights came out other than they were published; they were written to `uri`."""

    version: int
    digest: str
    uri: str
    num_bytes: int


def missing_weights(
    publications: Sequence[WeightsPublished], folder: Path, *, only_there: bool, but_of_machines: bool = False
) -> list[int]:
    """Versions whose file is not there. `only_there`: files outside of `folder` are another run's, which may remove them.

    `but_of_machines`: what was in the memory of other machines than this one is the trainer's to make again or to share.
    """
    here = machine_id()
    return [
        publication.version
        for publication in publications
        if not (but_of_machines and publication.machine not in ("", here))
        if not (path := published_file(publication.uri, folder)).is_file() or (only_there and path.parent != folder.absolute())
    ]


def put_weights_back(folder: Path, weights: Path, model: str, versions: Sequence[int], progress: Progress) -> list[Differing]:
    """Makes these versions of the run in `folder` loadable from `weights`; returns those that came out other. Raises ConfigError."""
    differing: list[Differing] = []

    def take(word: str, rest: str) -> None:
        if word == _PROGRESS:
            done, total = map(int, rest.split())
            progress(done, total)
        elif word == _DIFFERS:
            differing.append(Differing(**json.loads(rest)))

    try:
        run_child("services.launcher.weights_back", [str(folder), str(weights), model, *map(str, versions)], take)
    except ChildFailed as failed:
        names = ", ".join(map(str, versions))
        raise ConfigError(
            f"the published weights of version {names} are gone and cannot be made again: {failed.tail}\n"
            "Go back to a step that has a checkpoint with --from-step"
        ) from failed
    return differing


def main(arguments: list[str]) -> None:
    """The process that does it: prints its progress and what came out other."""
    folder, weights, model, *names = arguments
    with Recording.open(Path(folder)) as recording:
        plan = recording.entry(1).event
    # Before torch is loaded, which reads it once.
    set_threads(as_far_as_here(plan.devices.get("trainer", ""), this_machine()) if isinstance(plan, RunPlanned) else "")
    Remake(Path(folder), Path(weights), model, [int(name) for name in names]).run()


class Remake:
    """Writes versions of one run again, the oldest first."""

    def __init__(self, folder: Path, weights: Path, model: str, versions: Sequence[int]) -> None:
        from services.learner.redo import KINDS, TrainedSteps

        self._folder = folder
        self._weights = weights
        self._model = model
        self._record: TrainedSteps = TrainedSteps()
        with Recording.open(folder) as recording:
            for row in recording.rows(kinds=KINDS):
                self._record.apply(row.entry().event)
        self._wanted = {self._record.publications[version].step: self._record.publications[version].event for version in versions}

    def run(self) -> None:
        """Takes what checkpoints have, and trains the rest again. Raises SwingshiftError."""
        for step, publication in list(self._wanted.items()):
            if self._from_checkpoint(step, publication):
                del self._wanted[step]
        if self._wanted:
            self._train_again()

    def _from_checkpoint(self, step: int, publication: WeightsPublished) -> bool:
        from services.learner.checkpoint import MODEL, read_checkpoint
        from services.learner.digests import weights_digest
        from services.learner.wire import as_published
        from services.weights.store import put_back

        for saved in reversed(self._record.checkpoints):
            if saved.step == step:
                try:
                    trained = read_checkpoint(checkpoint_folder(saved.uri, self._folder), {MODEL}).part(MODEL)
                except CheckpointError:
                    continue
                found = as_published(trained, publication.dtype)
                if weights_digest(found) == publication.digest:
                    put_back(publication.uri, found, self._weights)
                    return True
        return False

    def _train_again(self) -> None:
        from services.learner.redo import load_newest, redo

        first, last = min(self._wanted), max(self._wanted)
        record, learner = self._record, self._learner()
        loaded = load_newest(
            learner, [saved for saved in record.checkpoints if saved.step <= first], lambda uri: checkpoint_folder(uri, self._folder)
        )
        begun = 0 if loaded is None else loaded.step
        if begun in self._wanted:
            self._keep(learner, self._wanted[begun])
        with PayloadRecording.open(self._folder) as payloads:
            batches = record.between(begun, last)
            for redone in redo(learner, batches, record.published_after, lambda batch: list(self._groups(payloads, batch))):
                say(_PROGRESS, f"{redone.step - begun} {last - begun}")
                if redone.step in self._wanted:
                    self._keep(learner, self._wanted[redone.step])
        learner.close()

    def _learner(self) -> Learner:
        from services.config import SCRIPTED
        from services.learner.planned import planned_learner

        assert self._record.plan is not None
        return planned_learner(self._record.plan, model=None if self._model == SCRIPTED else Path(self._model))

    def _groups(self, payloads: PayloadRecording, batch: BatchFormed) -> Iterator[SampleGroup]:
        from services.samples import unpack_group

        for sample in batch.samples:
            yield unpack_group(payloads.get_ref(self._record.payloads[sample]))

    def _keep(self, learner: Learner, publication: WeightsPublished) -> None:
        from services.learner.digests import weights_digest
        from services.learner.wire import as_published
        from services.weights.store import put_back

        weights = as_published(learner.weights(), publication.dtype)
        digest = weights_digest(weights)
        if digest == publication.digest:
            put_back(publication.uri, weights, self._weights)
            return
        # Epoch 0 has no trainer, and no version has the same revision twice: no other publication has this name.
        path = self._weights.absolute() / f"weights-e0-v{publication.version}-r{publication.revision + 1}.safetensors"
        put_back(path.as_uri(), weights, self._weights)
        told = {"version": publication.version, "digest": digest, "uri": path.as_uri(), "num_bytes": path.stat().st_size}
        say(_DIFFERS, json.dumps(told))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SwingshiftError as error:
        sys.exit(str(error))
