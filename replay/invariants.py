"""What must hold at every position of every log, checked by a fold of its own that shares no code with the cores.

- A batch is formed only under a grant with the devices home.
- At most one swing runs, and each ends in SwitchDone or SwitchRejected.
- Nothing is routed to a hybrid between RoutesCut and RoutesOpened.
- No replica that was woken is on the devices at ReloadRequested.
- Neither TrainGranted nor SwitchStarted(answers) comes before the publication; no boundary has two answers.
- A hybrid is woken with the newest published version; versions never go back.
- Every sample is in exactly one place (a second outcome of one key counts for nobody); none is trained twice or after it was dropped;
  what is outstanding stays within the limit; no batch holds a sample over the version lag that may be. A decision is measured by the
  settings at its cause: one that was changed on the live run counts for what is decided from there on.
- What is said of evaluations in `replay.evaluation_invariants`, and of policies in `replay.policy_invariants`.
"""

from __future__ import annotations

from math import floor

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    DevicesReloaded,
    DevicesYielded,
    GenerationFinished,
    GenerationRequested,
    OpenRoutesRequested,
    ReloadRequested,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    SettingChanged,
    StepDone,
    StopRequested,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    TrainGranted,
    WakeRequested,
    WeightsPublished,
)
from bus.settings import Settings
from replay.evaluation_invariants import EvaluationInvariants
from replay.policy_invariants import PolicyInvariants


class Invariants:
    """Fold of a whole log; `apply` returns what an entry breaks, in words."""

    def __init__(self) -> None:
        self.plan: RunPlanned | None = None
        """As it is now."""
        self._settings = Settings()
        self._plans: list[tuple[int, RunPlanned]] = []
        """(position from which on it is so, the plan with the settings of then), the newest last."""
        self.place: dict[int, str] = {}
        """Sample -> in flight | ready | batch | trained | dropped:reason."""
        self.ended: RunEnded | None = None
        self._ender = ""
        self._granted = False
        self._home = True
        self._swing: int | None = None
        self._open_routes: dict[str, None] = {}
        self._on_devices: dict[tuple[str, int], str] = {}
        self._version = -1
        self._steps = 0
        self._used = 0
        self._batch: BatchFormed | None = None
        self._boundary: int | None = None
        self._boundary_position = 0
        self._answered: dict[int, None] = {}
        self._counts = {"in flight": 0, "ready": 0}
        self._stop_requested = False
        self._evaluations = EvaluationInvariants()
        self._policies = PolicyInvariants()
        self._oldest: dict[int, int] = {}
        """Ready sample -> version of its oldest weights."""

    def apply(self, entry: Entry) -> list[str]:
        """Takes in one entry."""
        event = entry.event
        if self.ended is not None and entry.derived and entry.source == self._ender:
            return [f"{event.kind} was decided after RunEnded"]
        if isinstance(event, GenerationRequested | GenerationFinished):
            request = self._check_request(event) if isinstance(event, GenerationRequested) else []
            return [*request, *self._evaluations.apply(entry)]
        return [
            *self._check_samples(entry),
            *self._check_training(entry),
            *self._check_swing(entry),
            *self._check_replicas(entry),
            *self._evaluations.apply(entry),
            *self._policies.apply(entry),
        ]

    # --- the books ---------------------------------------------------------------------------------------------------------------

    def _check_samples(self, entry: Entry) -> list[str]:
        event = entry.event
        match event:
            case RunPlanned() | SettingChanged():
                self._settings.apply(event)
                self.plan = self._settings.plan
                self._plans += [] if self.plan is None else [(entry.position, self.plan)]
            case SampleStarted():
                return self._start(event.sample, self._plan_at(entry.cause))
            case SampleReady() if self.place.get(event.sample) == "in flight":
                self._oldest[event.sample] = event.oldest_version
                return self._move(event.sample, ("in flight",), "ready")
            case SampleDropped():
                owned = ("in flight",) if event.reason in ("failed", "filtered") else ("ready",)
                return self._move(event.sample, owned, f"dropped:{event.reason}")
            case BatchFormed():
                moved = [broken for sample in event.samples for broken in self._move(sample, ("ready",), "batch")]
                return [*moved, *(broken for sample in event.samples for broken in self._check_age(sample, self._plan_at(entry.cause)))]
            case StepDone() if self._batch is not None:
                return [broken for sample in self._batch.samples for broken in self._move(sample, ("batch",), "trained")]
            case _:
                pass
        return []

    def _plan_at(self, cause: int) -> RunPlanned:
        """With the settings that whoever decided on `cause` knew."""
        return next((plan for position, plan in reversed(self._plans) if position <= cause), self._plans[0][1])

    def _start(self, sample: int, plan: RunPlanned) -> list[str]:
        broken = []
        if sample in self.place:
            broken.append(f"sample {sample} was started twice")
        if sample and sample - 1 not in self.place:
            broken.append(f"sample {sample} was started, {sample - 1} was skipped")
        if plan.num_prompts is not None and sample >= plan.num_prompts:
            broken.append(f"sample {sample} is over the plan's {plan.num_prompts} prompts")
        self.place[sample] = "in flight"
        self._counts["in flight"] += 1
        outstanding = self._counts["in flight"] + self._counts["ready"] + self._used
        limit = floor(plan.required_samples * plan.trigger_parameter_sync_step * (1 + plan.staleness_threshold))
        if outstanding > limit:
            broken.append(f"{outstanding} samples are outstanding, the staleness limit is {limit}")
        return broken

    def _check_age(self, sample: int, plan: RunPlanned) -> list[str]:
        limit, lag = plan.max_version_lag, self._version - self._oldest.pop(sample, self._version)
        too_old = limit is not None and lag > limit
        return [f"sample {sample} is trained {lag} versions after its oldest weights, over {limit}"] if too_old else []

    def _move(self, sample: int, allowed: tuple[str, ...], to: str) -> list[str]:
        place = self.place.get(sample, "nowhere")
        if place in self._counts:
            self._counts[place] -= 1
        if to in self._counts:
            self._counts[to] += 1
        self.place[sample] = to
        return [] if place in allowed else [f"sample {sample} became {to}, it was {place}"]

    # --- training and boundaries -------------------------------------------------------------------------------------------------

    def _check_training(self, entry: Entry) -> list[str]:
        event = entry.event
        match event:
            case BatchFormed():
                return self._form(event)
            case StepDone():
                return self._finish_step(event, entry.position)
            case WeightsPublished():
                return self._publish(event)
            case BoundaryOpened():
                self._boundary, self._boundary_position = event.version, entry.position
            case StopRequested():
                self._stop_requested = True
            case TrainGranted():
                return self._grant(event)
            case RunEnded():
                self.ended, self._ender = event, entry.source
                return self._end()
            case _:
                pass
        return []

    def _form(self, event: BatchFormed) -> list[str]:
        broken = []
        if not self._granted or not self._home:
            broken.append(f"a batch was formed {'with the devices lent' if not self._home else 'without a grant'}")
        if self._batch is not None:
            broken.append(f"batch {event.step} was formed while {self._batch.step} is in training")
        if event.step != self._steps + 1:
            broken.append(f"batch {event.step} follows step {self._steps}")
        if not event.samples:
            broken.append("an empty batch was formed")
        self._batch = event
        self._used += len(event.samples)
        return broken

    def _finish_step(self, event: StepDone, position: int) -> list[str]:
        broken = [] if self._batch is not None and self._batch.step == event.step else [f"step {event.step} was done without its batch"]
        self._batch = None
        self._steps = event.step
        if event.is_boundary:
            self._granted = False
            self._boundary, self._boundary_position = None if self._was_last() else event.version + 1, position
        return broken

    def _was_last(self) -> bool:
        """The step just done: no boundary opens after it."""
        assert self.plan is not None
        started_all = self.plan.num_prompts is not None and len(self.place) >= self.plan.num_prompts
        nothing_left = started_all and not self._counts["in flight"] and not self._counts["ready"]
        return self._steps >= self.plan.total_steps or self._stop_requested or nothing_left

    def _publish(self, event: WeightsPublished) -> list[str]:
        broken = [] if event.version in (self._version, self._version + 1) else [f"version {event.version} follows {self._version}"]
        if event.version > self._version:
            self._used = 0
        self._version = event.version
        return broken

    def _grant(self, event: TrainGranted) -> list[str]:
        broken = []
        if self._version < event.version:
            broken.append(f"granted before weights {event.version} were published")
        if not self._home:
            broken.append("granted with the devices lent")
        if self._boundary is not None:
            broken += self._answer(event.version)
        self._granted = True
        return broken

    def _answer(self, version: int) -> list[str]:
        broken = []
        if version != self._boundary:
            broken.append(f"boundary {version} was answered while {self._boundary} is open")
        if version in self._answered:
            broken.append(f"boundary {version} was answered twice")
        self._answered[version] = None
        self._boundary = None
        return broken

    def _end(self) -> list[str]:
        broken = []
        if self._swing is not None:
            broken.append(f"the run ended while swing {self._swing} runs")
        assert self.plan is not None
        assert self.ended is not None
        if self.ended.reason == "prompts_exhausted" and (self._counts["ready"] or self._counts["in flight"]):
            broken.append(f"the prompts are exhausted and {self._counts} samples were not accounted for")
        return broken

    # --- the swing ---------------------------------------------------------------------------------------------------------------

    def _check_swing(self, entry: Entry) -> list[str]:
        event = entry.event
        match event:
            case SwitchStarted():
                return self._begin_swing(event, entry.cause)
            case SwitchDone():
                return self._end_swing(event.swing, done=True)
            case SwitchRejected() if event.swing:
                return self._end_swing(event.swing, done=False)
            case DevicesYielded():
                return self._leave()
            case DevicesReloaded():
                self._home = True
                return []
            case ReloadRequested():
                return [f"reload was requested with {name} epoch {epoch} on the devices" for name, epoch in self._on_devices]
            case _:
                return []

    def _leave(self) -> list[str]:
        self._home = False
        self._granted = False
        broken = [] if self._batch is None else ["the devices were left with a batch in training"]
        return broken if self._boundary is None else [*broken, f"the devices were left while boundary {self._boundary} is open"]

    def _begin_swing(self, event: SwitchStarted, cause: int) -> list[str]:
        broken = []
        if self._swing is not None:
            broken.append(f"swing {event.swing} started while {self._swing} runs")
        if event.target == "rollout" and not self._home:
            broken.append("lending began with the devices away")
        if event.answers is not None:
            if self._version < event.answers:
                broken.append(f"lending began before weights {event.answers} were published")
            broken += self._answer(event.answers)
        elif self._boundary is not None and event.target == "rollout" and cause >= self._boundary_position:
            broken.append(f"lending began in mid-cycle while boundary {self._boundary} is open")
        self._swing = event.swing
        return broken

    def _end_swing(self, swing: int, done: bool) -> list[str]:
        broken = [] if self._swing == swing else [f"swing {swing} ended while {self._swing} runs"]
        self._swing = None
        return broken

    # --- replicas and routes -----------------------------------------------------------------------------------------------------

    def _check_replicas(self, entry: Entry) -> list[str]:
        event = entry.event
        match event:
            case WakeRequested():
                self._on_devices[event.replica, event.epoch] = "waking"
                return (
                    [] if event.version == self._version else [f"{event.replica} was woken with {event.version}, newest is {self._version}"]
                )
            case ReplicaAwake() if (event.replica, entry.epoch) in self._on_devices:
                self._on_devices[event.replica, entry.epoch] = "awake"
            case ReplicaAsleep():
                self._on_devices.pop((event.replica, entry.epoch), None)
            case ReplicaLost():
                self._on_devices = {key: how for key, how in self._on_devices.items() if key[0] != event.replica or key[1] > event.epoch}
            case RoutesCut():
                self._open_routes = {}
            case RoutesOpened():
                self._open_routes = dict.fromkeys(event.replicas)
            case OpenRoutesRequested():
                waking = [name for (name, _), how in self._on_devices.items() if how == "waking"]
                return [f"routes were opened with {name} neither awake nor lost" for name in waking]
            case _:
                pass
        return []

    def _check_request(self, event: GenerationRequested) -> list[str]:
        assert self.plan is not None
        if event.replica in self.plan.hybrid and event.replica not in self._open_routes:
            return [f"{event.request} was routed to hybrid {event.replica} while routes are cut"]
        return []
