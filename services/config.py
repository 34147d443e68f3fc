"""What a user can set about a run: one frozen model a section, with verl's names where the concept is the same.

Nothing here imports torch, so that a mistake is told at once. How a file becomes a `RunConfig`: `services/config_file.py`.
How a `RunConfig` becomes a `RunPlanned`, with every default worked out: `services/plan.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bus.events import Deadlines, Value
from services.engines.protocol import Sampling
from services.learner.config import LearnerConfig

BUILTIN = "builtin"
"""`model.path` of a small model that is made on the spot for the task."""
SCRIPTED = "scripted"
"""`model.path` without a model: the learner computes nothing, for tests and benchmarks."""

FROM_OTHER_SECTIONS = {"model": "model.path", "temperature": "rollout.temperature"}
"""Settings of the learner that are set elsewhere, so that trainer and replicas cannot disagree."""


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ShapeConfig(Section):
    """Size of the built-in model; what is unset is as in `services.tasks.model.ModelShape`."""

    hidden_size: int | None = Field(default=None, ge=8, le=8192)
    intermediate_size: int | None = Field(default=None, ge=8, le=65_536)
    num_layers: int | None = Field(default=None, ge=1, le=128)
    num_heads: int | None = Field(default=None, ge=1, le=128)
    num_kv_heads: int | None = Field(default=None, ge=1, le=128)


class WarmStartConfig(Section):
    """Supervised training of the built-in model before the run; what is unset is as in `services.tasks.model.WarmStart`."""

    steps: int | None = Field(default=None, ge=1, le=100_000)
    batch: int | None = Field(default=None, ge=1, le=4096)
    lr: float | None = Field(default=None, gt=0, le=1)
    lr_warmup_steps: int | None = Field(default=None, ge=0, le=100_000)
    seed: int | None = Field(default=None, ge=0)
    threads: int = Field(default=1, ge=1, le=1024)
    """Part of the result, for the order of sums depends on it."""


class ModelConfig(Section):
    """What is trained."""

    path: str = Field(default=BUILTIN, min_length=1)
    """Folder of a Hugging Face causal language model; `builtin`: made on the spot; `scripted`: none."""
    shape: ShapeConfig = ShapeConfig()
    warm_start: WarmStartConfig = WarmStartConfig()


class DataConfig(Section):
    """Where prompts and rewards come from."""

    task: str = "sorting"
    """A built-in task."""
    reward: str = ""
    """Task whose reward is used; empty: that of `task`."""
    seed: int = Field(default=0, ge=0, lt=1 << 53)
    """The run's seed: order of the prompts, sampling."""

    @model_validator(mode="before")
    @classmethod
    def _reward_of_the_task(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("reward"):
            return {**data, "reward": data.get("task", "sorting")}
        return data


class RolloutConfig(Section):
    """How answers are generated and scored."""

    engine: Literal["embedded", "scripted"] = "embedded"
    n: int = Field(default=8, ge=1, le=1024)
    """Answers of one sample."""
    temperature: float = Field(default=1.0, gt=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: the whole vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends an answer; unset: the task's."""
    max_prompt_length: int | None = Field(default=None, ge=1, le=1_048_576)
    """In tokens; unset: the task's."""
    max_response_length: int | None = Field(default=None, ge=1, le=1_048_576)
    """In tokens, whatever the number of moves; unset: the task's."""
    max_running_requests: int = Field(default=32, ge=1, le=1024)
    """Requests that one replica runs at a time."""
    queued_requests: int | None = Field(default=None, ge=0, le=1024)
    """Requests that wait at a replica for those it runs, so that a slot is never empty for want of a message; unset: half as many as run.
    All others wait at the rollouter, where they can still go to a replica that wakes up."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """An answer that fails is tried this often, then its sample is dropped as `failed`."""
    partial_rollout: bool = True
    """Answers that move to another replica go on where they were."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of a device's memory that one hybrid replica takes."""
    standalone_gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1)
    """Share of a device's memory that one standalone replica takes."""
    reward_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    reward_workers: int = Field(default=1, ge=1, le=256)
    engine_kwargs: dict[str, Value] = {}
    """Further settings of the engine (`services.engines.config.EngineConfig`)."""

    @property
    def slots(self) -> int:
        """Requests that one replica is sent at a time."""
        queued = (self.max_running_requests + 1) // 2 if self.queued_requests is None else self.queued_requests
        return self.max_running_requests + queued

    def sampling(self) -> Sampling:
        """How the engines draw tokens."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, stop_token_ids=self.stop_token_ids)


class TrainerConfig(Section):
    """The trainer as a holder of devices; how it trains is in `actor`."""

    gpu_memory_utilization: float = Field(default=0.1, ge=0, le=1)
    """Share of a device's memory that stays with the trainer while the device is lent."""


class AsyncTrainingConfig(Section):
    """How training and generation overlap, and how long the run is."""

    ppo_mini_batch_size: int = Field(default=16, ge=1, le=65_536)
    require_batches: int = Field(default=1, ge=1, le=1024)
    """Samples of one step = ppo_mini_batch_size * require_batches."""
    trigger_parameter_sync_step: int = Field(default=4, ge=1, le=10_000)
    """Steps of one cycle."""
    staleness_threshold: float = Field(default=0.5, ge=0, le=100)
    total_steps: int | None = Field(default=None, ge=1)
    """Unset: as many as the prompts last."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Prompts of one data epoch; unset: as many as are needed."""
    total_epochs: int = Field(default=1, ge=1, le=100_000)
    """How often the prompts are gone through; needs `num_prompts`."""
    tail: Literal["train", "drop"] = "train"
    """What happens to the last, partial batch when the prompts end."""
    checkpoint_every_versions: int = Field(default=1, ge=1)
    on_redo_diverged: Literal["auto", "stop", "republish"] = "auto"
    """When steps redone after a restart give other weights; auto: stop on CPU, republish on CUDA."""
    use_dynamic_resource_scheduling: bool = True
    """False: the devices are never lent by a policy."""
    enable_rebalance: bool = True
    max_lent_s: float = Field(default=600.0, gt=0)
    """Longest time the devices stay lent when a verdict names none."""


class ReplicasConfig(Section):
    """How many engines there are; they are called s0, s1, … and h0, h1, …"""

    standalone: int = Field(default=1, ge=0, le=1024)
    hybrid: int = Field(default=1, ge=0, le=1024)

    @property
    def standalone_names(self) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(self.standalone))

    @property
    def hybrid_names(self) -> tuple[str, ...]:
        return tuple(f"h{number}" for number in range(self.hybrid))


class PolicyConfig(Section):
    """When to swing."""

    name: str = "default"
    params: dict[str, Value] = {}


class WeightsConfig(Section):
    """How published weights get from the trainer to the replicas."""

    transport: Literal["auto", "shm", "file"] = "auto"
    folder: Path | None = None
    """For transport `file`: a folder that trainer and replicas share; unset: in the run's folder."""


class RedisConfig(Section):
    """Where the log is; `--redis` and REDIS_URL go before it."""

    url: str | None = None
    """Unset: an embedded server in the run's folder."""


class SupervisorConfig(Section):
    """How `swingshift run` looks after the services."""

    max_restarts: int = Field(default=5, ge=0, le=1000)
    """Of one service in a row; one that lived for `healthy_after_s` starts counting anew."""
    healthy_after_s: float = Field(default=120.0, gt=0)
    first_delay_s: float = Field(default=0.2, ge=0, le=3600)
    """Before the first restart; it doubles with each further one."""
    longest_delay_s: float = Field(default=30.0, gt=0, le=3600)
    grace_s: float = Field(default=20.0, gt=0, le=3600)
    """How long services may take to end by themselves after the run has ended."""
    stop_s: float = Field(default=300.0, gt=0, le=86_400)
    """How long a run that was asked to stop may take to end in order."""


class ScriptedConfig(Section):
    """How the scripted engine and learner behave."""

    seconds_per_step: float = Field(default=0.0, ge=0, le=3600)
    tokens_per_second: float = Field(default=1000.0, gt=0)
    """Of each running request."""
    shortest_answer: int = Field(default=4, ge=1)
    longest_answer: int = Field(default=16, ge=1)
    start_s: float = Field(default=0.0, ge=0)
    wake_s: float = Field(default=0.0, ge=0)
    sleep_s: float = Field(default=0.0, ge=0)


def _device_map(data: object) -> object:
    """Lists of cores become `0,1`, as the plan has them."""
    if isinstance(data, str):
        if data not in ("auto", "unpinned"):
            raise ValueError(f"devices is {data!r}: it must be auto, unpinned, or a map of services to cores or devices")
        return data
    if not isinstance(data, dict):
        raise ValueError(f"devices is {data!r}: it must be auto, unpinned, or a map of services to cores or devices")
    return {str(service): _device(str(service), value) for service, value in data.items()}


def _device(service: str, value: object) -> str:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    device = ",".join(str(part).strip() for part in parts)
    if not device or not all(part.isdecimal() or part.removeprefix("cuda:").isdecimal() for part in device.split(",")):
        raise ValueError(f"devices.{service} is {value!r}: it must be cores such as [0, 1], or devices such as cuda:0")
    return device


class RunConfig(Section):
    """A whole run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = Field(default_factory=lambda: DataConfig.model_validate({}))
    rollout: RolloutConfig = RolloutConfig()
    actor: LearnerConfig = Field(default_factory=lambda: LearnerConfig(model=BUILTIN))
    trainer: TrainerConfig = TrainerConfig()
    async_training: AsyncTrainingConfig = AsyncTrainingConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    policy: PolicyConfig = PolicyConfig()
    devices: Annotated[Literal["auto", "unpinned"] | dict[str, str], BeforeValidator(_device_map)] = "auto"
    """Service -> its cores (CPU) or GPUs. `auto`: trainer and hybrid replicas share theirs, standalone ones have others."""
    deadlines: Deadlines = Deadlines()
    weights: WeightsConfig = WeightsConfig()
    redis: RedisConfig = RedisConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    scripted: ScriptedConfig = ScriptedConfig()
    folder: Path = Path("runs")
    """Where the folders of runs are."""

    @model_validator(mode="before")
    @classmethod
    def _complete_actor(cls, data: object) -> object:
        """The learner's model and temperature come from their own sections."""
        if not isinstance(data, dict):
            return data
        actor = data.get("actor") or {}
        if not isinstance(actor, dict):
            return data
        for name, instead in FROM_OTHER_SECTIONS.items():
            if name in actor:
                raise ValueError(f"actor.{name} is {actor[name]!r}: it is set by {instead} for trainer and replicas alike")
        model, rollout = data.get("model") or {}, data.get("rollout") or {}
        taken: dict[str, object] = {"model": model.get("path", BUILTIN)} if isinstance(model, dict) else {"model": BUILTIN}
        if isinstance(rollout, dict) and "temperature" in rollout:
            taken["temperature"] = rollout["temperature"]
        return {**data, "actor": {**actor, **taken}}

    def resolved(self) -> dict[str, object]:
        """As plain data that `RunConfig.model_validate` takes back. Without the server's URL, which may contain a password."""
        return self.model_dump(mode="json", exclude={"actor": set(FROM_OTHER_SECTIONS), "redis": True})
