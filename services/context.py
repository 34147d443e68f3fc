"""What a service is given when it starts: where the log is, what was planned, and who it is.

place, spec ─▶ plan, its log's first entry ─▶ ServiceContext ─▶ the service's shell
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.alive import Alive
from bus.errors import ConfigError, GapError
from bus.events import RunPlanned, ServiceStarted
from bus.history import History
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.sources import CONTROLLER, POLICY, REPLICA, TRAINER
from services.agreement import Publishing
from services.config import SCRIPTED, RunConfig
from services.devices import cores_of, is_cuda, share_of, tensor_parallel_size
from services.engines.vllm_installed import usable_vllm
from services.exit_codes import LAPSED
from services.launcher.protocol import RunPlace, ServiceSpec
from services.local_settings import with_local_settings
from services.machine import machine_id
from services.planned import config_of, engine_config

if TYPE_CHECKING:
    from services.engines.config import EngineConfig
    from services.engines.protocol import Engine
    from services.learner.protocol import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """One incarnation of one service. Clients of the log are not thread-safe: open one a thread."""

    place: RunPlace
    """Where the log and the run's folder are, which is absolute here."""
    spec: ServiceSpec
    """Which service it is, as whoever started it said."""
    plan: RunPlanned
    """The log's first entry."""
    config: RunConfig
    """As the plan has it: nothing of it is left to be worked out."""
    code: str
    """Digest of the code that decides in this service."""
    supervised: bool = True
    """A supervisor says who is gone; under `swingshift serve` nobody does, and the controller looks for signs of life."""
    in_process: bool = False
    """All services are threads of one process: no signals, no affinity, nobody can be killed."""
    machine: str = field(default_factory=machine_id)
    """Which machine it is on."""

    @property
    def url(self) -> str:
        """The server's."""
        return self.place.url

    @property
    def run(self) -> str:
        """The run's name."""
        return self.place.run

    @property
    def folder(self) -> Path:
        """The run's, absolute."""
        return self.place.folder

    @property
    def service(self) -> str:
        """`trainer`, `rollouter`, `replica`, `controller`, `policy`, `archiver`."""
        return self.spec.service

    @property
    def name(self) -> str:
        """A replica's name, a shadow's label; empty for the others."""
        return self.spec.name

    @property
    def source(self) -> str:
        """What the service is called in the log."""
        return self.spec.source

    @property
    def role(self) -> Literal["", "standalone", "hybrid"]:
        """Which kind of replica it is; empty for other services."""
        if self.service != REPLICA:
            return ""
        return "hybrid" if self.name in self.plan.hybrid else "standalone"

    @property
    def on_cluster(self) -> bool:
        """It is on some node of a cluster, which may lose touch with the others."""
        return self.spec.device is not None

    @property
    def placed(self) -> str:
        """On a cluster: the GPUs that it was given, by the names that they have here; empty: those that were planned, or none."""
        return self.spec.device or ""

    @property
    def planned_device(self) -> str:
        """Cores or GPUs that were planned for it, as the log calls them: GPUs are numbered over the whole run. Empty: any."""
        return self.plan.devices.get(self.source, "")

    @property
    def device(self) -> str:
        """The same by the names that they have here; empty: any."""
        return self.placed or self.planned_device

    @property
    def cores(self) -> str:
        """The device that its process is bound to; empty: none, also where the planned ones are not there."""
        return "" if self.config.devices == "unpinned" else self.device

    @property
    def own_device(self) -> str:
        """What this process has of the device: of cores that a trainer's ranks share out, those of its rank."""
        ranks = self.config.actor.ranks if self.service == TRAINER else 1
        return self.device if is_cuda(self.device) else share_of(self.device, self.spec.rank, ranks)

    @property
    def own_cores(self) -> str:
        """What this process is bound to of `cores`."""
        return self.own_device if self.cores else ""

    @property
    def holds_a_lease(self) -> bool:
        """It ends itself when nobody can have seen it for a while: whoever says that it is gone may not be able to end it."""
        return self.service == REPLICA and (self.on_cluster or not self.supervised)

    @property
    def threads(self) -> int:
        """With how many it computes on cores: as many as it is bound to; else a replica on a cluster with as many as it is counted for."""
        bound = 0 if is_cuda(self.device) else len(cores_of(self.own_device))
        counted = int(self.config.cluster.cpus.replica) if self.on_cluster and self.service == REPLICA else 1
        return bound or max(1, counted)

    @property
    def weights_folder(self) -> Path:
        """Where published weights lie that are not in shared memory."""
        return self.config.weights.folder or self.folder / "weights"

    @property
    def model_folder(self) -> Path:
        """The Hugging Face folder of the initial model."""
        return Path(self.config.model.path)

    def started(self) -> ServiceStarted:
        """Its first word in the log."""
        return ServiceStarted(
            code=self.code, host=socket.gethostname(), pid=os.getpid(), role=self.role, token=self.spec.token, machine=self.machine
        )

    def open_log(self) -> RedisLog:
        """A further client of the log. Raises LogMissing, ServerError."""
        return RedisLog.open(self.url, self.run)

    def open_history(self) -> History:
        """A further reader of the log, from its first entry on, wherever that is by now. Raises LogMissing, ServerError."""
        return History.open(self.url, self.run, self.folder)

    def open_blobs(self) -> RedisBlobs:
        """A further client of the payloads."""
        return RedisBlobs(self.url, self.run)

    def alive(self, epoch: int) -> Alive:
        """The sign of life of this incarnation. Nobody can decide for the controller: all others say when it is lost."""
        watched = None if self.service == CONTROLLER else CONTROLLER
        return Alive(self.url, self.run, self.source, epoch, on_lapse=end_at_once if self.holds_a_lease else None, watched=watched)

    def make_learner(self, offloaded: bool = False) -> Learner:
        """The learner with the initial weights. Raises ConfigError for a model that cannot be used."""
        if self.config.model.path == SCRIPTED:
            from services.learner.scripted import ScriptedLearner

            return ScriptedLearner(self.config.scripted.seconds_per_step)
        from services.learner.making import make_model_learner

        publishing = Publishing.of(self.plan)
        return make_model_learner(self.config.actor, self.plan.total_steps, publishing, device=self.cores, offloaded=offloaded)

    def engine_settings(self) -> EngineConfig:
        """What the engine of this replica is set to: as the run says, on the devices of this one."""
        config, rollout = engine_config(self.config, self.plan), self.config.rollout
        share = rollout.gpu_memory_utilization if self.role == "hybrid" else rollout.standalone_gpu_memory_utilization
        own = {"memory_share": share, "tensor_parallel_size": tensor_parallel_size(self.config, self.device)}
        return config.model_copy(update={"vllm": config.vllm.model_copy(update=own)})

    def check_engine(self) -> None:
        """Raises ConfigError for a replica that is to generate with what is not here. Loads nothing."""
        if self.service == REPLICA and self.config.rollout.engine == "vllm":
            usable_vllm([self.device])

    def make_engine(self) -> Engine:
        """The engine of this replica, not started."""
        config = self.engine_settings()
        if config.kind == "scripted":
            return self._scripted_engine(config)
        if config.kind == "vllm":
            return self._vllm_engine(config)
        from services.engines.embedded import EmbeddedEngine

        return EmbeddedEngine(config, self.model_folder, "cuda" if self.device.startswith("cuda") else "cpu")

    def _vllm_engine(self, config: EngineConfig) -> Engine:
        from services.engines.vllm import VllmEngine

        return VllmEngine(config, self.model_folder, self.device or "cpu")

    def _scripted_engine(self, config: EngineConfig) -> Engine:
        from services.engines.script import Script, varying_length
        from services.engines.scripted import ScriptedEngine

        scripted = self.config.scripted
        script = Script(
            varying_length(scripted.shortest_answer, scripted.longest_answer),
            scripted.tokens_per_second,
            seconds={"start": scripted.start_s, "wake": scripted.wake_s, "sleep": scripted.sleep_s},
        )
        return ScriptedEngine(config, script)


def end_at_once() -> None:
    """The end of a replica that nobody can see any more: its devices will be given to others, so it must be gone by then."""
    logger.critical("no sign of life could be given for its whole time to live: ending")
    os._exit(LAPSED)


def read_plan(url: str, run: str, folder: Path) -> RunPlanned:
    """The plan of a run, from its log; `folder`: where its recording is, if it is on this machine.

    Raises LogMissing, ServerError, ConfigError.
    """
    with History.open(url, run, folder) as history:
        try:
            return plan_of(history)
        except GapError as error:
            raise ConfigError(f"the plan of run {run} cannot be read: {error}") from error


def plan_of(history: History) -> RunPlanned:
    """The plan of a run, its first entry. Raises GapError, ConfigError."""
    first = history.read(0, 1)
    event = first[0].event if first else None
    if not isinstance(event, RunPlanned):
        raise ConfigError(f"run {history.run}: the log does not begin with a plan, but with {event!r}: it was not made by swingshift")
    return event


def make_context(
    place: RunPlace, spec: ServiceSpec, plan: RunPlanned, code: str, *, supervised: bool = True, in_process: bool = False
) -> ServiceContext:
    """The context of one service of a planned run. Raises ConfigError for a replica that is not in the plan."""
    known = plan.standalone + plan.hybrid
    if spec.service == REPLICA and spec.name not in known:
        raise ConfigError(f"run {plan.run} has no replica {spec.name or 'without a name'!r}: name one of {', '.join(known)} with --name")
    if spec.service not in (REPLICA, POLICY) and spec.name:
        raise ConfigError(f"{spec.service} was given the name {spec.name!r}: only replicas have names")
    config = with_local_settings(config_of(plan), place.folder)
    place = replace(place, folder=place.folder.absolute())
    return ServiceContext(place, spec, plan, config, code, supervised=supervised, in_process=in_process)
