"""A run whose trainer is real and whose machines are made up: each has a folder of its own for its shared memory, and an id.

story ──what the others would say──▶ log ──▶ trainer's shell (a thread) ──▶ memory of its machine, shared folder
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bus.blobs import put_blob
from bus.entry import Draft, Producer
from bus.events import Event, RunEnded, SampleReady, SampleStarted, ServiceStarted, TrainGranted, WeightsPublished
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from services.config_file import make_config
from services.context import make_context
from services.launcher.protocol import RunPlace, ServiceSpec
from services.learner.protocol import Learner
from services.learner.scripted import ScriptedLearner
from services.payloads import sample_blob
from services.places import shm_folder
from services.plan import plan_run
from services.samples import Answer, SampleGroup, VersionSpan, pack_group
from services.shell import Shell, Terminated
from services.trainer.core import TrainerCore
from services.trainer.files import CheckpointFiles
from services.trainer.shell import TrainerPerformer
from services.weights.store import WeightStore

E = TypeVar("E", bound=Event)

LONGEST_S = 60.0


class Cluster:
    """Two samples a cycle of two steps; `settings` are added to those of `async_training`."""

    def __init__(self, url: str, run: str, folder: Path, **settings: object) -> None:
        training = {"total_steps": 8, "trigger_parameter_sync_step": 2, "ppo_mini_batch_size": 1, "require_batches": 1, **settings}
        given = {
            "model": {"path": "scripted"}, "rollout": {"engine": "scripted", "n": 1}, "devices": "unpinned", "async_training": training,
            "replicas": {"standalone": 2, "hybrid": 0},
        }  # fmt: skip
        self.plan = plan_run(make_config(given, "test"), run)
        self.folder = folder / "run"
        self.shared = self.folder / "weights"
        self._memories = folder / "memories"
        self._url = url
        self._log = RedisLog.create(url, self.plan, time.time_ns())
        self._blobs = RedisBlobs(url, run)
        self._producers: dict[str, Producer] = {}
        self._samples = 0
        for source in ("rollouter", "controller", "operator"):
            self.start(source, "")

    def memory(self, machine: str) -> Path:
        """Where weights lie in a machine's memory."""
        return shm_folder(self.plan.run, self._memories / machine)

    def lose(self, machine: str) -> None:
        """With all that its memory has."""
        shutil.rmtree(self._memories / machine)

    def start(self, source: str, machine: str) -> None:
        """A service somewhere, of which nothing but its first word is real."""
        started = ServiceStarted(code="test", machine=machine)
        self._producers[source] = self._log.attach(source, Draft(started, derived=False, cause=0, at=time.time_ns())).producer

    def say(self, source: str, event: Event) -> int:
        """Returns the position."""
        return self._log.append(self._producers[source], [Draft(event, derived=False, cause=1, at=time.time_ns())])

    def grant(self, version: int) -> None:
        """The steps of the next cycle, once its weights are published."""
        self.wait(WeightsPublished, lambda event: event.version == version)
        self.say("controller", TrainGranted(version=version, reason="static"))

    def sample(self, count: int) -> None:
        """So many are ready."""
        for _ in range(count):
            number, self._samples = self._samples, self._samples + 1
            self.say("rollouter", SampleStarted(sample=number, version=0))
            answer = Answer((number, 2), (-0.5, -0.25), (VersionSpan(0, 2),), "stop", 1.0)
            blob = put_blob(self._blobs, sample_blob(number), pack_group(SampleGroup(number, (1,), (answer,))))
            ready = SampleReady(sample=number, num_tokens=3, oldest_version=0, newest_version=0, mean_reward=1.0, blob=blob)
            self.say("rollouter", ready)

    @contextmanager
    def trainer(self, machine: str, make_learner: Callable[[], Learner] = ScriptedLearner) -> Iterator[None]:
        """An incarnation of the trainer there, which is ended at the end of the block and need not have done all by then."""
        (self._memories / machine).mkdir(parents=True, exist_ok=True)
        place = RunPlace(self._url, self.plan.run, self.folder)
        made = make_context(place, ServiceSpec("trainer"), self.plan, "test", in_process=True)
        context, core = replace(made, machine=machine), TrainerCore()
        store = WeightStore(context.run, "auto", context.weights_folder, self._memories / machine)
        files = CheckpointFiles(context.folder / "checkpoints")
        blobs = context.open_blobs()
        performer = TrainerPerformer(core, lambda _: make_learner(), store, files, blobs)
        shell = Shell(context, core, performer)
        thread = threading.Thread(target=shell.run, name=f"trainer on {machine}")
        thread.start()
        try:
            yield
        finally:
            shell.fail(Terminated("test"))
            thread.join(LONGEST_S)
            blobs.close()
        assert not thread.is_alive()

    def wait(self, kind: type[E], which: Callable[[E], bool] = lambda _: True) -> E:
        """The first such event, as soon as it is there."""
        after, give_up = 0, time.monotonic() + LONGEST_S
        while time.monotonic() < give_up:
            for entry in self._log.read(after, 100, 100):
                after = entry.position
                assert not isinstance(entry.event, RunEnded)
                if isinstance(entry.event, kind) and which(entry.event):
                    return entry.event
        raise AssertionError(f"no {kind.__name__} within {LONGEST_S} s, there are {[event.kind for event in self.said(Event)]}")

    def said(self, kind: type[E]) -> list[E]:
        """All events of a kind."""
        return [entry.event for entry in self._log.read(0, 10_000, 0) if isinstance(entry.event, kind)]

    def close(self) -> None:
        """Ends its own connections."""
        self._log.close()
        self._blobs.close()
