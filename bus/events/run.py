"""Events of the run as a whole: its plan, its services, its operator.

supervisor -> all: RunPlanned        every service -> all: ServiceStarted, ServiceStopped
supervisor (or controller under `serve`) -> controller: ServiceLost
operator -> all: SettingChanged, StopRequested, CheckpointRequested, RebalanceRequested
janitor / rollouter -> all: RolloutPaused, RolloutResumed
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bus.events.base import Event, Frozen, Role, Value


class Deadlines(Frozen):
    """How long things may take, in seconds. `act`: the controller kills or ends; `report`: it only says so."""

    start_s: float = Field(default=300.0, gt=0)
    """act: a replica has its engine up, counted from its start, else it is killed; the run opens with those that have. With vLLM 900."""
    verdict_s: float = Field(default=5.0, gt=0)
    """act: the policy answers a boundary, else the trainer trains on."""
    wake_s: float = Field(default=120.0, gt=0)
    """act: a hybrid replica is awake, else it is killed."""
    abort_s: float = Field(default=30.0, gt=0)
    """act: every request in flight at the cut has its outcome, else the replica is killed."""
    sleep_s: float = Field(default=60.0, gt=0)
    """act: a hybrid replica is asleep, else it is killed."""
    update_s: float = Field(default=120.0, gt=0)
    """act: a serving replica has taken new weights, else it is killed."""
    kill_s: float = Field(default=30.0, gt=0)
    """act: the exit of a killed replica is verified, else the run ends. On a cluster 120: that a node is gone is heard late."""
    generate_s: float = Field(default=900.0, gt=0)
    """act: a replica with requests in flight finishes one, else it is killed."""
    no_replica_s: float = Field(default=300.0, gt=0)
    """act: with no replica at all, one comes back, else the run ends."""
    archiver_s: float = Field(default=300.0, gt=0)
    """act: an archiver that was lost is back, else the run ends: nobody else records it and frees the server's memory."""
    service_s: float = Field(default=300.0, gt=0)
    """report: trainer and rollouter answer a request (yield, reload, cut, open)."""
    stall_s: float = Field(default=300.0, gt=0)
    """report: a sample, a step, a swing or a replica gets on; else `Stalled` says who waits for what."""


class RunPlanned(Event):
    """First entry of every log: all totals, seeds and settings that cores and learner depend on. supervisor -> all."""

    kind: ClassVar[str] = "RunPlanned"
    emitter: ClassVar[Role | None] = "supervisor"
    run: str
    seed: int
    total_steps: int = Field(ge=1)
    required_samples: int = Field(ge=1)
    """Samples of one step: ppo_mini_batch_size * require_batches."""
    trigger_parameter_sync_step: int = Field(ge=1)
    """Steps of one cycle."""
    staleness_threshold: float = Field(ge=0)
    max_version_lag: int | None = Field(default=None, ge=0)
    """Most versions between the oldest weights in a sample and those that it trains; None: as many as the staleness limit allows."""
    on_version_lag: Literal["drop", "wait"] = "drop"
    """A sample that is over it is dropped as `stale`, and another takes its place; or steps wait for samples that would get over it."""
    max_logprob_diff: float = Field(default=0.0, ge=0, le=1000)
    """Log-probabilities that replicas and trainer have of the same tokens by the same weights may differ by so much on average before it
    is said; 0: it is never said."""
    rollout_n: int = Field(ge=1, le=65_536)
    """Answers of one sample."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Prompts in the plan, all data epochs counted; None: as many as are needed."""
    num_validation: int = Field(default=0, ge=0, le=1 << 24)
    """Prompts of the validation set; none of them is among those of the plan."""
    eval_every_versions: int = Field(default=0, ge=0)
    """Versions that this number divides are evaluated, version 0 not among them; 0: none."""
    eval_before_train: bool = False
    """Version 0 is evaluated."""
    eval_n: int = Field(default=1, ge=1, le=65_536)
    """Answers to each validation prompt."""
    eval_timeout_s: float = Field(default=300.0, gt=0)
    """act: an evaluation is done, counted from when it is its turn, else it ends with what is scored."""
    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    partial_rollout: bool = True
    weight_update_mode: Literal["abort", "keep"] = "abort"
    """What becomes of answers in flight on a standalone replica that takes new weights: they end as aborted and go on later, maybe
    elsewhere; or they are frozen meanwhile and go on with the new weights."""
    enable_rebalance: bool = True
    use_dynamic_resource_scheduling: bool = True
    standalone: tuple[str, ...] = ()
    hybrid: tuple[str, ...] = ()
    max_running_requests: int = Field(default=32, ge=1)
    """Requests that one replica runs at a time; what is over it waits, unrouted, at the rollouter."""
    max_attempts: int = Field(default=3, ge=1)
    """An answer that fails (engine error) is tried this often, then its group is dropped as `failed`."""
    max_filtered_samples_in_a_row: int = Field(default=1024, ge=1)
    """So many samples without signal, one after the other, end the run: generating on would not bring a batch together."""
    max_failed_samples_in_a_row: int = Field(default=16, ge=1)
    """So many samples dropped as `failed` with none ready in between end the run."""
    tail: Literal["train", "drop"] = "train"
    """What happens to the last, partial batch when the prompts end."""
    max_tokens_per_micro_batch: int = Field(default=16_384, ge=1)
    checkpoint_every_versions: int = Field(default=1, ge=1)
    on_redo_diverged: Literal["stop", "republish"] = "stop"
    max_lent_s: float = Field(default=600.0, gt=0)
    """Longest time the devices stay lent when a verdict names none."""
    deadlines: Deadlines = Deadlines()
    policy: str = "default"
    policy_params: dict[str, Value] = Field(default_factory=dict)
    policy_source: str = ""
    """Text of the file that the policy is from; empty for a built-in one."""
    devices: dict[str, str] = Field(default_factory=dict)
    """Service -> the device it holds: core numbers `0,1` on CPU, `cuda:0` on a GPU."""
    parent: str | None = None
    parent_position: int = 0
    config: str = ""
    """The resolved configuration as JSON, for people and for `resume`; cores never read it."""
    environment: dict[str, Value] = Field(default_factory=dict)
    """Python, torch, threads, backend, padding: what bits depend on."""

    @property
    def cycle_samples(self) -> int:
        """Samples of one cycle (S)."""
        return self.required_samples * self.trigger_parameter_sync_step


class ServiceStarted(Event):
    """A new incarnation of a service; the call that appends it allocates the epoch and fences out the one before. any -> all."""

    kind: ClassVar[str] = "ServiceStarted"
    code: str
    """Digest of the code that decides in this service."""
    host: str = ""
    pid: int = 0
    role: Literal["", "standalone", "hybrid"] = ""
    """For a replica: which kind it is."""
    token: str = ""
    """What whoever started this process gave it to be known by; empty: nothing."""
    machine: str = ""
    """Which machine it is on: with the same one it shares memory; empty: not known."""


class ServiceStopped(Event):
    """A service ends by itself, in order. any -> all."""

    kind: ClassVar[str] = "ServiceStopped"
    reason: str


class ServiceLost(Event):
    """The process of `service` (incarnation `epoch`) is gone, its exit verified. supervisor (controller under `serve`) -> controller."""

    kind: ClassVar[str] = "ServiceLost"
    service: str
    epoch: int
    restarting: bool
    """False: it will not come back, its restarts are used up."""
    detail: str = ""

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("supervisor", "controller")


class SettingChanged(Event):
    """A knob was turned on a live run; every service honours it from this position on. operator -> all."""

    kind: ClassVar[str] = "SettingChanged"
    emitter: ClassVar[Role | None] = "operator"
    name: str
    value: Value


class StopRequested(Event):
    """End the run in order: the batch in training is finished and published, nothing new begins. operator -> all."""

    kind: ClassVar[str] = "StopRequested"
    reason: str = ""

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("operator", "supervisor")


class CheckpointRequested(Event):
    """Save a checkpoint after the step in training. operator -> trainer."""

    kind: ClassVar[str] = "CheckpointRequested"
    emitter: ClassVar[Role | None] = "operator"


class RebalanceRequested(Event):
    """Spread the requests in flight evenly over the replicas that serve. operator (or policy, when devices were lent) -> rollouter."""

    kind: ClassVar[str] = "RebalanceRequested"
    reason: Literal["operator", "policy"] = "operator"

    def emitted_by(self) -> tuple[Role, ...] | None:
        return (self.reason,)


class _Pause(Event):
    reason: Literal["staleness", "no_replica", "memory"]
    used_bytes: int = 0
    """memory: what the run takes on the server."""
    budget_bytes: int = 0
    """memory: what it may take."""
    detail: str = ""
    """memory: what keeps the server from forgetting, if that is known."""

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("janitor",) if self.reason == "memory" else ("rollouter",)


class RolloutPaused(_Pause):
    """No new sample is started until the matching RolloutResumed. rollouter (memory: janitor) -> all."""

    kind: ClassVar[str] = "RolloutPaused"

    @property
    def is_over_budget(self) -> bool:
        """The run takes all it may: the controller ends it."""
        return self.reason == "memory" and 0 < self.budget_bytes <= self.used_bytes


class RolloutResumed(_Pause):
    """Samples are started again. rollouter (memory: janitor) -> all."""

    kind: ClassVar[str] = "RolloutResumed"
