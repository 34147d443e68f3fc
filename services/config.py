"""What a user can set about a run: one frozen model a section, with verl's names where the concept is the same.

Nothing here imports torch, so that a mistake is told at once. How a file becomes a `RunConfig`: `services/config_file.py`.
How a `RunConfig` becomes a `RunPlanned`, with every default worked out: `services/plan.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from bus.events import Deadlines, Value
from services.engine_defaults import with_engine_defaults
from services.engines.protocol import Sampling
from services.learner.config import LearnerConfig

BUILTIN = "builtin"
"""`model.path` of a small model that is made on the spot for the task."""
SCRIPTED = "scripted"
"""`model.path` without a model: the learner computes nothing, for tests and benchmarks."""

FROM_OTHER_SECTIONS = {
    "model": "model.path",
    "temperature": "rollout.temperature",
    "max_response_length": "rollout.max_response_length",
}
"""Settings of the learner that are set elsewhere, so that trainer and replicas cannot disagree."""


TopK = Annotated[int, BeforeValidator(lambda value: 0 if value == -1 else value)]


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ShapeConfig(Section):
    """Size of the built-in model; what is unset is as in `services.tasks.model.ModelShape`."""

    hidden_size: int | None = Field(default=None, ge=8, le=8192)
    """Width; 96."""
    intermediate_size: int | None = Field(default=None, ge=8, le=65_536)
    """Width inside the feed-forward layers; 256."""
    num_layers: int | None = Field(default=None, ge=1, le=128)
    """2."""
    num_heads: int | None = Field(default=None, ge=1, le=128)
    """Attention heads; 4, with vLLM 3."""
    num_kv_heads: int | None = Field(default=None, ge=1, le=128)
    """Heads of keys and values; 2, with vLLM 1."""


class WarmStartConfig(Section):
    """Supervised training of the built-in model before the run; what is unset is as in `services.tasks.model.WarmStart`."""

    steps: int | None = Field(default=None, ge=1, le=100_000)
    """Optimizer steps; 300."""
    batch: int | None = Field(default=None, ge=1, le=4096)
    """Demonstrations of one step; 48."""
    lr: float | None = Field(default=None, gt=0, le=1)
    """The highest learning rate; 0.004. It falls as a cosine to a twentieth."""
    lr_warmup_steps: int | None = Field(default=None, ge=0, le=100_000)
    """Steps in which it rises; 50."""
    seed: int | None = Field(default=None, ge=0)
    """Of the weights and the demonstrations; 0."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Part of the result, for the order of sums depends on it."""


class ModelConfig(Section):
    """What is trained."""

    path: str = Field(default=BUILTIN, min_length=1)
    """Folder of a Hugging Face causal language model; `builtin`: made on the spot; `scripted`: none."""
    shape: ShapeConfig = ShapeConfig()
    warm_start: WarmStartConfig = WarmStartConfig()


def _one_or_more(data: object) -> object:
    """A single name stands for a list of one."""
    return (data,) if isinstance(data, str) else () if data is None else data


class DataConfig(Section):
    """Where prompts and rewards come from: a built-in task, or files."""

    task: str = "sorting"
    """A built-in task; without effect when there are `train_files`."""
    train_files: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """One or more of: a JSONL file, a Parquet file, a folder written by `datasets`' `save_to_disk`. They are read in this order."""
    val_files: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """The same for the validation set; the built-in tasks have one of their own."""
    val_prompts: int | None = Field(default=None, ge=0, le=1_000_000)
    """Prompts of the validation set that are used; unset: all of the files', 64 of a built-in task."""
    prompt_key: str = Field(default="prompt", min_length=1)
    """Column with the prompt: text, or chat messages. A dot leads into a column: `extra.question`."""
    answer_key: str = Field(default="answer", min_length=1)
    """Column with the reference answer; verl's files have it in `reward_model.ground_truth`."""
    apply_chat_template: Literal["auto", "always"] = "auto"
    """auto: chat messages get the tokenizer's chat template, text stays as it is; always: text is taken as a user's message."""
    apply_chat_template_kwargs: dict[str, Value] = {}
    """Further variables of the chat template, such as `enable_thinking: false`."""
    filter_overlong_prompts: bool = False
    """Prompts over `rollout.max_prompt_length`: true leaves them out and says how many, false is a mistake that names the first."""
    shuffle: bool = True
    """Each data epoch has an order of its own, which follows from `seed`; false: the order of the files, in every epoch."""
    reward: str = ""
    """`exact`, `number`, `math_verify`, `path/file.py:function`, or a built-in task; empty: the reward of `task`."""
    seed: int = Field(default=0, ge=0, lt=1 << 53)
    """The run's seed: order of the prompts, sampling."""

    @model_validator(mode="before")
    @classmethod
    def _reward_of_the_task(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("reward") and not data.get("train_files"):
            return {**data, "reward": data.get("task", "sorting")}
        return data


class RolloutConfig(Section):
    """How answers are generated and scored."""

    engine: Literal["embedded", "scripted", "vllm"] = "embedded"
    """What generates: the embedded engine, for any Hugging Face model; vLLM; or one that computes nothing, for tests."""
    n: int = Field(default=8, ge=1, le=1024)
    """Answers of one sample."""
    temperature: float = Field(default=1.0, gt=0, le=100)
    """Answers are drawn at it; trainer and replicas share it."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the most likely tokens that have this probability together are drawn."""
    top_k: TopK = Field(default=0, ge=0)
    """0, which others write as -1: the whole vocabulary."""
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
    filter_groups: bool = False
    """Samples whose answers all have the same reward, which GRPO learns nothing from, are dropped as `filtered`, and others take their
    place (DAPO's dynamic sampling)."""
    max_filtered_samples_in_a_row: int = Field(default=1024, ge=1, le=1_000_000)
    """So many of them one after the other end the run."""
    max_failed_samples_in_a_row: int = Field(default=16, ge=1, le=1_000_000)
    """So many samples dropped as `failed`, for their reward or their answers, with none ready in between, end the run as failed."""
    partial_rollout: bool = True
    """Answers that move to another replica go on where they were."""
    weight_update_mode: Literal["abort", "keep"] = "abort"
    """When a standalone replica takes new weights, its answers in flight end there, and go on as `partial_rollout` says, maybe elsewhere
    (`abort`); or they are frozen meanwhile and go on with the new weights, over what the old ones have cached (`keep`)."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of a device's memory that one hybrid replica takes."""
    standalone_gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1)
    """Share of a device's memory that one standalone replica takes."""
    reward_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """How long the reward of one answer may take; then its worker is killed, and the sample is dropped as `failed`."""
    reward_workers: int = Field(default=1, ge=1, le=256)
    """Processes that compute rewards."""
    engine_kwargs: dict[str, Value] = {}
    """Further settings of the engine (`services.engines.config.EngineConfig`); with vLLM all of `vllm.AsyncEngineArgs`, too."""

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
    """Samples (prompts with their answers) of one optimizer step."""
    require_batches: int = Field(default=1, ge=1, le=1024)
    """Samples of one step = ppo_mini_batch_size * require_batches."""
    trigger_parameter_sync_step: int = Field(default=4, ge=1, le=10_000)
    """Steps of one cycle."""
    staleness_threshold: float = Field(default=0.5, ge=0, le=100)
    """How many samples more than a cycle needs may be outstanding, as a share of them; 0: none."""
    max_version_lag: int | None = Field(default=None, ge=0, le=1_000_000)
    """Most versions between the oldest weights in a sample and those that it trains; unset: as many as the staleness limit allows."""
    on_version_lag: Literal["drop", "wait"] = "drop"
    """drop: a sample over the limit is dropped as `stale`, and another takes its place; wait: a step waits for samples that would get
    over it, so none is dropped."""
    max_logprob_diff: float | None = Field(default=None, ge=0, le=1000)
    """Mean difference of the log-probabilities that replicas and trainer have of the same tokens by the same weights from which on there is
    a warning, once a version; 0: never. Unset: 0.001 where all is float32, else 0.05; 0 with `top_p` or `top_k`."""
    total_steps: int | None = Field(default=None, ge=1, le=1 << 53)
    """Unset: as many as the prompts last."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Prompts of one data epoch, the first of the files; unset: all of the files', and of a built-in task as many as are needed."""
    total_epochs: int | None = Field(default=None, ge=1, le=100_000)
    """How often the prompts are gone through; a built-in task needs `num_prompts` for it. Unset: once, or, if `total_steps` is set and
    `num_prompts` is not, as often as it takes."""
    tail: Literal["train", "drop"] = "train"
    """What happens to the last, partial batch when the prompts end."""
    checkpoint_every_versions: int = Field(default=1, ge=1)
    """Published versions from one checkpoint to the next."""
    on_redo_diverged: Literal["auto", "stop", "republish"] = "auto"
    """When steps redone after a restart give other weights; auto: stop on CPU, republish on CUDA."""
    use_dynamic_resource_scheduling: bool = True
    """False: the devices are never lent by a policy."""
    enable_rebalance: bool = True
    """Answers move when replicas are added or woken, as far as the load is uneven."""
    max_lent_s: float = Field(default=600.0, gt=0)
    """Longest time the devices stay lent when a verdict names none."""


class EvaluationConfig(Section):
    """When weights are tried on the validation set (`data.val_files`, `data.val_prompts`), and how answers are drawn there."""

    every_versions: int = Field(default=0, ge=0, le=1_000_000)
    """Published versions that this number divides are evaluated; 0: none. One version is published every
    `trigger_parameter_sync_step` steps."""
    before_train: bool = False
    """The initial weights are evaluated, too."""
    n: int = Field(default=1, ge=1, le=1024)
    """Answers to each prompt; more than one needs a temperature over 0."""
    temperature: float = Field(default=0.0, ge=0, le=100)
    """0: the most likely token each time."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the most likely tokens that have this probability together are drawn."""
    top_k: TopK = Field(default=0, ge=0)
    """0, which others write as -1: the whole vocabulary."""
    eval_timeout_s: float = Field(default=300.0, gt=0)
    """What is not scored by then is left out, and the evaluation says that it is partial."""

    def sampling(self, stop_token_ids: tuple[int, ...]) -> Sampling:
        """How the engines draw tokens in an evaluation."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, stop_token_ids=stop_token_ids)


class ReplicasConfig(Section):
    """How many engines there are; they are called s0, s1, … and h0, h1, …"""

    standalone: int = Field(default=1, ge=0, le=1024)
    """Replicas with devices of their own."""
    hybrid: int = Field(default=1, ge=0, le=1024)
    """Replicas that share the trainer's devices and sleep while it has them."""

    @property
    def standalone_names(self) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(self.standalone))

    @property
    def hybrid_names(self) -> tuple[str, ...]:
        return tuple(f"h{number}" for number in range(self.hybrid))


class PolicyConfig(Section):
    """When to swing."""

    name: str = "default"
    """`default`, `fixed_ratio`, `static_fully_async`, `separate_async`, `predictive`, or `path/file.py:ClassName` for one of your own."""
    params: dict[str, Value] = {}
    """The policy's own settings."""


def _on_or_off(data: object) -> object:
    """YAML reads these words as true and false."""
    return {True: "on", False: "off"}[data] if isinstance(data, bool) else data


class WeightsConfig(Section):
    """How published weights get from the trainer to the replicas."""

    transport: Literal["auto", "shm", "file", "direct", "nccl", "ipc"] = "auto"
    """shm: shared memory of one machine; file: a shared folder. On top of a copy there, for vLLM on GPUs: nccl, from GPU to GPU; ipc,
    through memory of the GPU that trainer and replica share; direct, whichever of the two a replica can take. What does not work falls back
    to the copy. auto: shm and, without room there or with replicas on other machines than the trainer, file. A replica that comes up on
    another machine than a copy in shm gets it by way of the folder."""
    direct_host: str = Field(default="auto", min_length=1)
    """The trainer's address at which replicas ask for nccl and ipc. auto: 127.0.0.1 and, once some replica is on another machine, the
    address by which the trainer's machine reaches the run's Redis server."""
    direct_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """How long one transfer by nccl or ipc may take. One that has not begun falls back to the copy; one in the middle fails its replica."""
    folder: Path | None = None
    """A folder that trainer and replicas share, for transport `file`, and for `auto` with several machines; unset: in the run's folder.
    With nccl and ipc the copy lies there, if this is set."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What weights are rounded to when they are published; training itself and checkpoints keep float32. auto: bfloat16, half the bytes,
    where trainer (`actor.dtype`) and engine both compute in it, so that nothing that is computed changes; else float32, the trained weights
    bit for bit. With bfloat16 for an engine that computes in float32, its log-probabilities are those of the rounded weights."""
    delta: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = "auto"
    """Publishes beside the weights what changed in them since the version before; replicas that have that one read no more than this, and
    keep a copy of the weights in memory for it. auto: for transport `file`, where it has less than half the bytes; on: whenever it is no
    larger."""


def _bytes(data: object) -> object:
    """`2GiB` and the like as bytes; numbers as they are."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", data.strip()) if isinstance(data, str) else None
    if found is None:
        return data
    base = 1024 if "i" in found[2] else 1000
    return round(float(found[1]) * base ** (" KMGT".index(found[2][0])))


class RedisConfig(Section):
    """Where the log is; `--redis` and REDIS_URL go before it."""

    url: str | None = None
    """Unset: an embedded server in the run's folder."""
    ca_file: Path | None = None
    """Certificate of the CA that a `rediss://` server is trusted by; REDIS_CA_FILE goes before it. Unset: those of this machine."""
    memory_budget: Annotated[int, BeforeValidator(_bytes)] = Field(default=16 << 30, ge=1 << 16)
    """What the run may take of the server's memory, in bytes or as `2GiB`; on a server with less, what that has (95 % of its `maxmemory`,
    less what others take). A run that takes all of it is ended; nothing is evicted."""
    memory_pause_at: float = Field(default=0.8, gt=0, le=1)
    """Share of the budget from which on no new sample is started."""
    memory_resume_at: float = Field(default=0.6, ge=0, le=1)
    """Share of the budget below which samples are started again."""

    @model_validator(mode="after")
    def _marks_in_order(self) -> RedisConfig:
        if self.memory_resume_at > self.memory_pause_at:
            raise ValueError(
                f"redis.memory_resume_at is {self.memory_resume_at}, which is over redis.memory_pause_at, {self.memory_pause_at}: "
                "a paused run would resume at once"
            )
        return self


class SupervisorConfig(Section):
    """How `swingshift run` looks after the services."""

    max_restarts: int = Field(default=5, ge=0, le=1000)
    """Of one service in a row; one that lived for `healthy_after_s` starts counting anew."""
    healthy_after_s: float = Field(default=120.0, gt=0)
    """A service that has lived this long has started well."""
    first_delay_s: float = Field(default=0.2, ge=0, le=3600)
    """Before the first restart; it doubles with each further one."""
    longest_delay_s: float = Field(default=30.0, gt=0, le=3600)
    """Longest pause before a restart."""
    candidate_s: float = Field(default=30.0, gt=0, le=3600)
    """How long a policy that is to be swapped in may take without getting on, until it is refused."""
    grace_s: float = Field(default=20.0, gt=0, le=3600)
    """How long services may take to end by themselves after the run has ended."""
    stop_s: float = Field(default=300.0, gt=0, le=86_400)
    """How long a run that was asked to stop may take to end in order."""


class MonitorConfig(Section):
    """Where the measures of each step go, besides the summary."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """tensorboard: event files in the run's folder; wandb, trackio: as they are set up here, when they are installed."""
    project: str = Field(default="swingshift", min_length=1)
    """Name of the project at wandb and trackio; the run there has our run's id."""
    events: bool = True
    """The measures are also entries of the log (`Measured`)."""


class CpusConfig(Section):
    """What services are counted as in Ray's books of CPUs; it limits none of them."""

    rank: float = Field(default=1.0, ge=0.01, le=4096)
    """Each rank of the trainer, together with the hybrid replicas on its device: they take turns. Its threads, too, if `actor.num_threads`
    is unset and it trains on a CPU."""
    replica: float = Field(default=1.0, ge=0.01, le=4096)
    """Each standalone replica. Threads of each replica that generates on a CPU."""
    other: float = Field(default=0.0, ge=0, le=4096)
    """Each of rollouter, controller, policy and archiver; 0: wherever there is a node."""


class ClusterConfig(Section):
    """Where Ray puts the services, with `swingshift run --on ray`; read by nothing else."""

    cpus: CpusConfig = CpusConfig()
    resources: dict[str, dict[str, Annotated[float, Field(gt=0, le=1_000_000)]]] = {}
    """Service -> what it takes of resources that nodes were started with (`ray start --resources`): binds it to such a node."""
    strategy: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """Whether trainer and replicas are brought together on few nodes or spread over many; strict: on one, or each part on another, or not
    at all. What shares a GPU is together anyway."""
    runtime_env: dict[str, JsonValue] = {}
    """What the nodes get before anything starts there, as Ray has it (`pip`, `env_vars`, …), besides this checkout. It is recorded with
    the run: no secrets here."""
    wait_s: float = Field(default=60.0, ge=0, le=86_400)
    """How long the run waits for room at its start, if others have it."""


class ScriptedConfig(Section):
    """How the scripted engine and learner behave."""

    seconds_per_step: float = Field(default=0.0, ge=0, le=3600)
    """Time of one training step."""
    tokens_per_second: float = Field(default=1000.0, gt=0)
    """Of each running request."""
    shortest_answer: int = Field(default=4, ge=1)
    """Tokens of the shortest answer."""
    longest_answer: int = Field(default=16, ge=1)
    """Tokens of the longest answer."""
    start_s: float = Field(default=0.0, ge=0)
    """Time an engine takes to start."""
    wake_s: float = Field(default=0.0, ge=0)
    """Time it takes to wake."""
    sleep_s: float = Field(default=0.0, ge=0)
    """Time it takes to sleep."""


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
    evaluation: EvaluationConfig = EvaluationConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    policy: PolicyConfig = PolicyConfig()
    devices: Annotated[Literal["auto", "unpinned"] | dict[str, str], BeforeValidator(_device_map)] = "auto"
    """Service -> its cores (CPU) or GPUs. `auto`: trainer and hybrid replicas share theirs, standalone ones have others."""
    deadlines: Deadlines = Deadlines()
    weights: WeightsConfig = WeightsConfig()
    redis: RedisConfig = RedisConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    monitor: MonitorConfig = MonitorConfig()
    cluster: ClusterConfig = ClusterConfig()
    scripted: ScriptedConfig = ScriptedConfig()
    folder: Path = Path("runs")
    """Where the folders of runs are."""

    @model_validator(mode="before")
    @classmethod
    def _complete_actor(cls, data: object) -> object:
        """The learner's model, temperature and longest answer come from their own sections; some defaults depend on the engine."""
        if not isinstance(data, dict):
            return data
        data = with_engine_defaults(data, BUILTIN)
        actor = data.get("actor") or {}
        if not isinstance(actor, dict):
            return data
        for name, instead in FROM_OTHER_SECTIONS.items():
            if name in actor:
                raise ValueError(f"actor.{name} is {actor[name]!r}: it is set by {instead} for trainer and replicas alike")
        model, rollout = data.get("model") or {}, data.get("rollout") or {}
        taken: dict[str, object] = {"model": model.get("path", BUILTIN)} if isinstance(model, dict) else {"model": BUILTIN}
        if isinstance(rollout, dict):
            taken |= {name: rollout[name] for name in ("temperature", "max_response_length") if name in rollout}
        return {**data, "actor": {**actor, **taken}}

    def resolved(self) -> dict[str, object]:
        """As plain data that `RunConfig.model_validate` takes back.

        Without the server's address, which may contain a password, and is another one for each service.
        """
        return self.model_dump(mode="json", exclude={"actor": set(FROM_OTHER_SECTIONS), "redis": {"url", "ca_file"}})
