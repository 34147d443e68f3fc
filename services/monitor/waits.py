"""Who waits for which event, since when, and what would end the wait: read from the states of the cores, for `swingshift doctor`.

trainer ◀─ samples ─ rollouter ◀─ answers ─ replicas        controller ◀─ verdicts ─ policy        controller ◀─ phases of a swing ─ all
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    CheckpointRequested,
    CutRoutesRequested,
    DevicesYielded,
    EvalDone,
    EvalRequested,
    OpenRoutesRequested,
    ReloadRequested,
    RoutesCut,
    SleepRequested,
    StepDone,
    SwitchDone,
    SwitchStarted,
    TrainGranted,
    WakeRequested,
    WeightsPublished,
    YieldRequested,
)
from bus.sources import REPLICA_PREFIX
from services.controller.swing import Swing
from services.monitor.situation import Situation
from services.trainer.core import Checkpoint, Publish, Reload, Train, Yield

MOST_NAMED = 4
"""Names in one line; the rest is counted."""
ROLES = ("trainer", "rollouter", "controller", "policy")


@dataclass(frozen=True, slots=True)
class Wait:
    """One line of the doctor."""

    who: str
    what: str
    """What it waits for, or is busy with."""
    since: Entry | None
    """None: not known from the log."""
    ends_with: str
    """The event that ends it, and what that takes."""
    busy: bool = False
    """It works; others may wait for it."""
    never: str = ""
    """Why it cannot end by itself; empty: it can."""


@dataclass(frozen=True, slots=True)
class Due:
    """A deadline of the controller."""

    key: str
    since: Entry
    seconds: float
    then: str
    """What happens when it has passed."""


def waits(found: Situation) -> list[Wait]:
    """All waits, in the order trainer, controller, policy, rollouter, replicas. None after the end of the run."""
    if found.ended is not None or found.plan is None:
        return []
    return [*_trainer(found), *_controller(found), *_rollouter(found), *_evaluation(found), *_replicas(found)]


def deadlines(found: Situation) -> list[Due]:
    """All that has to happen by when, the one that is due first in front."""
    due = [Due(key, since, seconds, _then(key)) for key, (since, seconds) in found.armed.items()]
    return sorted(due, key=lambda item: item.since.at + item.seconds * 1e9)


# --- the trainer -----------------------------------------------------------------------------------------------------------------


def _trainer(found: Situation) -> Iterator[Wait]:
    core, books = found.trainer, found.trainer.books
    if not _started(found, "trainer"):
        return
    for request in core.outstanding():
        match request:
            case Publish(version=version):
                yield _busy(f"publishing weights {version}", found.entry(request.cause), f"WeightsPublished({version})")
            case Checkpoint(step=step):
                since = found.since(WeightsPublished, CheckpointRequested)
                yield _busy(f"writing the checkpoint of step {step}", since, f"CheckpointSaved({step})")
            case Yield(swing=swing):
                yield _busy(f"leaving its devices for swing {swing}", found.since(YieldRequested), f"DevicesYielded({swing})")
            case Reload(swing=swing):
                yield _busy(f"coming back to its devices in swing {swing}", found.since(ReloadRequested), f"DevicesReloaded({swing})")
            case Train(batch=batch):
                yield _busy(f"training step {batch.step}", found.since(BatchFormed), f"StepDone({batch.step})")
            case _:
                pass
        return
    if core.is_waiting:
        yield _for_samples(found)
    elif not core.home:
        lent = found.controller.lent
        if lent is not None and found.controller.swing is None:
            back = f"{lent.started.give_back_at} samples ready (now {len(books.ready)}), or after {lent.started.max_lent_s:g} s"
            yield Wait("trainer", f"its devices, lent in swing {lent.started.swing}", found.since(SwitchDone), back)
        else:
            yield Wait("trainer", "its devices", found.since(DevicesYielded), "the swing, see the controller")
    elif not core.granted and found.controller.boundary.version is not None:
        version = found.controller.boundary.version
        yield Wait("trainer", f"the decision on boundary {version}", found.since(StepDone, BoundaryOpened), "TrainGranted or SwitchStarted")


def _for_samples(found: Situation) -> Wait:
    books = found.trainer.books
    assert found.plan is not None
    need, have, flying, startable = found.plan.required_samples, len(books.ready), len(books.in_flight), books.startable
    ends = f"{max(0, need - have)} more SampleReady: {flying} in flight, {startable} can be started"
    never = ""
    if have + flying + startable < need and not books.exhausted and not books.stop_requested:
        never = f"{have} ready, {flying} in flight and {startable} startable are fewer than the {need} that a step needs"
    since = found.since(TrainGranted, StepDone)
    return Wait("trainer", f"samples for step {books.steps_done + 1}: {have} of {need} ready", since, ends, never=never)


def _busy(what: str, since: Entry | None, ends_with: str) -> Wait:
    return Wait("trainer", what, since, ends_with, busy=True)


# --- the controller and the policy -----------------------------------------------------------------------------------------------


def _controller(found: Situation) -> Iterator[Wait]:
    core = found.controller
    for name, epoch in core.replicas.killing:
        yield Wait(
            "controller", f"the exit of replica {name}, epoch {epoch}", found.newest_of.get(("KillRequested", name)),
            f"ServiceLost(replica:{name}), from the supervisor",
        )  # fmt: skip
    if "BoundaryOpened" not in found.newest:
        yield from _start(found)
    elif core.swing is not None:
        yield _phase(found, core.swing)
    elif core.boundary.version is not None:
        yield from _boundary(found, core.boundary.version)


def _start(found: Situation) -> Iterator[Wait]:
    assert found.plan is not None
    missing = [role for role in ROLES if not _started(found, role)]
    up = {replica.name for replica in found.controller.replicas.by_name.values() if replica.state != "starting"}
    missing += [f"{REPLICA_PREFIX}{name}" for name in found.plan.standalone + found.plan.hybrid if name not in up]
    if found.trainer.books.version < 0:
        missing.append("weights 0 (trainer)")
    if missing:
        yield Wait("controller", f"the start of {_some(missing)}", found.entries[0], "BoundaryOpened(0), once they are there")


def _boundary(found: Situation, version: int) -> Iterator[Wait]:
    opened = found.since(StepDone, BoundaryOpened)
    if found.controller.boundary.is_asking:
        yield Wait("controller", f"the verdict on boundary {version}", opened, f"SwitchRequested(answers={version}), from the policy")
        if _started(found, "policy"):
            yield Wait("policy", f"answering boundary {version}", opened, f"SwitchRequested(answers={version})", busy=True)
    elif found.trainer.books.version < version:
        yield Wait("controller", f"weights {version}, before boundary {version} is decided", opened, f"WeightsPublished({version})")


def _phase(found: Situation, swing: Swing) -> Wait:
    """What a running swing waits for."""
    began = found.since(SwitchStarted)
    where = f"swing {swing.id} to {swing.started.target}, phase {swing.phase}"
    replicas = found.controller.replicas
    match swing.phase:
        case "yield":
            return Wait("controller", where, found.since(YieldRequested) or began, f"DevicesYielded({swing.id}), from the trainer")
        case "reload" | "rollback":
            return Wait("controller", where, found.since(ReloadRequested) or began, f"DevicesReloaded({swing.id}), from the trainer")
        case "cut":
            return Wait("controller", where, found.since(CutRoutesRequested) or began, f"RoutesCut({swing.id}), from the rollouter")
        case "open":
            return Wait("controller", where, found.since(OpenRoutesRequested) or began, f"RoutesOpened({swing.id}), from the rollouter")
        case "wake":
            late = [name for name, epoch in swing.to_wake.items() if not replicas.is_awake(name, epoch)]
            return Wait("controller", where, found.since(DevicesYielded, WakeRequested), f"ReplicaAwake of {_some(late)}")
        case "abort":
            owing = [f"{request} on {name}" for (request, _), name in swing.at_cut.items()]
            return Wait("controller", where, found.since(RoutesCut), f"GenerationFinished of {_some(owing)}")
        case "sleep":
            late = [name for name, epoch in swing.woken.items() if not replicas.is_off_devices(name, epoch)]
            return Wait("controller", where, found.since(SleepRequested), f"ReplicaAsleep of {_some(late)}")
        case _:
            return Wait("controller", where, began, "SwitchDone or SwitchRejected", busy=True)


# --- generation ------------------------------------------------------------------------------------------------------------------


def _rollouter(found: Situation) -> Iterator[Wait]:
    core, books = found.rollouter, found.rollouter.books
    if "staleness" in found.paused:
        ends = f"a publication, or a sample dropped: {books.limit} samples are outstanding at most"
        yield Wait("rollouter", "room under the staleness limit", found.paused["staleness"], ends)
    if "memory" in found.paused:
        yield Wait("rollouter", "memory of the log's server", found.paused["memory"], "RolloutResumed(memory), from the janitor")
    if "no_replica" in found.paused and "BoundaryOpened" in found.newest:
        ends = "a replica that serves: ReplicaAdded, or RoutesOpened of a lend"
        yield Wait("rollouter", "a replica", found.paused["no_replica"], ends)
    waiting = 0 if core.groups is None else core.groups.num_waiting
    if waiting and not core.routes.free_slots():
        yield Wait("rollouter", f"a free slot for {_number(waiting, 'answer')}", None, "GenerationFinished of any, or a replica more")
    scoring = core.outstanding()
    if scoring:
        oldest = min(scoring, key=lambda request: request.cause)
        ends = f"SampleReady or SampleDropped of {_some([request.key.partition(':')[2] for request in scoring])}"
        yield Wait("rollouter", f"rewards of {_number(len(scoring), 'sample')}", found.entry(oldest.cause), ends, busy=True)


def _evaluation(found: Situation) -> Iterator[Wait]:
    asked, done = found.newest.get(EvalRequested.kind), found.newest.get(EvalDone.kind)
    if asked is not None and isinstance(asked.event, EvalRequested) and (done is None or done.position < asked.position):
        version = asked.event.version
        yield Wait(f"replica {asked.event.replica}", f"evaluating version {version}", asked, f"EvalDone({version})", busy=True)


def _replicas(found: Situation) -> Iterator[Wait]:
    controller = found.controller
    for replica in controller.replicas.by_name.values():
        who, service = f"replica {replica.name}", found.services.get(REPLICA_PREFIX + replica.name)
        if replica.state == "starting":
            yield Wait(who, "starting its engine", None if service is None else service.entry, f"ReplicaAdded({replica.name})", busy=True)
        if replica.updating is not None:
            since = found.newest_of.get(("WeightUpdateRequested", replica.name))
            yield Wait(who, f"loading weights {replica.updating[0]}", since, f"WeightsApplied({replica.name})", busy=True)
        in_flight = controller.requests.open.get(replica.name, {})
        if in_flight:
            (request, attempt), *_ = in_flight
            what = f"generating: {len(in_flight)} in flight, the oldest is {request}"
            yield Wait(who, what, found.requested.get((request, attempt)), f"GenerationFinished({request})", busy=True)


def _started(found: Situation, service: str) -> bool:
    return service in found.services and found.services[service].is_here


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "") if names else "nobody"


def _then(key: str) -> str:
    what, _, rest = key.partition(":")
    match what:
        case "verdict":
            return "the trainer trains on without a verdict"
        case "lent":
            return "the devices go back"
        case "no_replica" | "archiver":
            return "the run ends"
        case "start":
            return "the run opens with those that are there, or ends"
        case "boot" | "update" | "generate":
            return f"replica {rest.partition(':')[0]} is killed"
        case "wake" | "abort" | "sleep":
            return f"replica {rest.split(':')[1]} is killed"
        case "kill":
            return "the run ends: an exit that cannot be verified"
        case "eval":
            return "the evaluation ends, partial"
        case "stall":
            return "Stalled says who waits for what"
        case _:
            return "it is only reported"
