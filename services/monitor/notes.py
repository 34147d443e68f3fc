"""What a person who watches a run wants to be told, one line an event."""

from __future__ import annotations

from bus.entry import Entry
from bus.events import (
    CheckpointRequested,
    DeadlineMissed,
    EvalDone,
    KillRequested,
    PolicyAttached,
    PolicyDetached,
    PolicyRefused,
    PolicyRequested,
    PromptsExhausted,
    RebalanceRequested,
    RedoDiverged,
    ReplicaAdded,
    ReplicaFailed,
    ReplicaLost,
    RolloutPaused,
    RunEnded,
    SampleDropped,
    ServiceLost,
    ServiceStarted,
    SettingChanged,
    Stalled,
    StepDone,
    StopRequested,
    SwitchDone,
    SwitchRejected,
    WeightsShared,
)
from services.monitor.last_words import last_words
from services.monitor.policy_history import Chosen
from services.monitor.summary import Summary
from services.monitor.swings import SwingCost
from services.policy.core import SOURCE, label_of

SLOW_START_S = 5.0
"""An engine that took longer to start is worth a line."""


def note_of(entry: Entry, opened: bool) -> str | None:
    """The line for an entry; None: nothing worth a line. `opened`: the run has begun; before that nobody can generate."""
    if not opened and isinstance(entry.event, RolloutPaused):
        return None
    return _about_trouble(entry) or _about_policy(entry) or _about_run(entry)


def swing_note(entry: Entry, summary: Summary) -> str | None:
    """The line for an entry with which a swing ends, and which `summary` has seen already."""
    match entry.event:
        case SwitchDone() as event:
            swing = summary.swings.all[-1]
            what = "lent" if event.target == "rollout" else "back"
            return f"swing {event.swing}: {what} ({swing.reason}){_cost(swing)}"
        case SwitchRejected() as event if event.swing:
            return f"swing {event.swing}: ended without a change ({event.reason})"
        case SwitchRejected() as event:
            return f"a request to swing was rejected: {event.reason}"
        case _:
            return None


def agreement_note(entry: Entry, summary: Summary) -> str | None:
    """The line for a step, which `summary` has seen already, in which trainer and replicas disagreed."""
    found = summary.agreement.disagreements
    return str(found[-1]) if isinstance(entry.event, StepDone) and found and found[-1].step == entry.event.step else None


def _cost(swing: SwingCost) -> str:
    if swing.seconds is None:
        return ""
    return f" in {swing.seconds:.2f} s: {', '.join(f'{name} {seconds:.2f}' for name, seconds in swing.phases.items())}"


def _about_trouble(entry: Entry) -> str | None:
    match entry.event:
        case ServiceLost() as event:
            back = "it is restarted" if event.restarting else "it will not come back"
            return f"{event.service} was lost, {back}{_detail(event.detail)}"
        case ReplicaLost() as event:
            return f"replica {event.replica} was lost with what it had in flight"
        case ReplicaFailed() as event:
            return f"replica {event.replica} failed during {event.during}{_detail(event.error)}"
        case KillRequested() as event:
            return f"replica {event.replica} is killed: {event.reason}"
        case DeadlineMissed() as event:
            return f"not in time: {event.key} ({event.seconds:g} s)"
        case Stalled() as event:
            return f"stalled: {event.have} of {event.need} samples ready, waiting for {', '.join(event.waiting_on) or 'nobody'}"
        case RedoDiverged() as event:
            return f"weights {event.version} came out differently when redone: {event.action}"
        case PolicyRefused() as event:
            what = f"policy {Chosen.of(event.name, {}, '')}" if event.name else f"shadow {event.label}"
            return f"{what} was refused at {event.stage}, nothing was changed{_detail(event.detail)}"
        case SampleDropped(reason="failed") as event:
            return f"sample {event.sample} was dropped as failed{_detail(event.detail)}"
        case RolloutPaused(reason="memory" | "no_replica") as event:
            return f"generation pauses: {event.reason}{_detail(event.detail)}"
        case _:
            return None


def _about_run(entry: Entry) -> str | None:
    match entry.event:
        case ReplicaAdded() as event if event.seconds >= SLOW_START_S:
            return f"replica {event.replica} is up: its engine took {event.seconds:.0f} s to start"
        case ServiceStarted() if entry.epoch > 1:
            return f"{entry.source} started anew, epoch {entry.epoch}"
        case EvalDone() as event:
            what = "in part" if event.partial else "done"
            reward = event.metrics.get("eval/mean_reward")
            return f"evaluation of version {event.version} {what}: {'no score' if reward is None else f'mean reward {reward:.3f}'}"
        case WeightsShared() as event:
            return f"weights {event.version} were put into the shared folder, for replicas on other machines"
        case PromptsExhausted() as event:
            return f"all {event.num_prompts} prompts were started"
        case StopRequested() as event:
            return f"asked to stop{_detail(event.reason)}"
        case SettingChanged() as event:
            return f"{event.name} is {event.value} from here on"
        case CheckpointRequested():
            return "asked for a checkpoint"
        case RebalanceRequested():
            return "asked to spread the requests anew"
        case RunEnded() as event:
            return f"the run ended: {event.reason}{_detail(event.detail)}"
        case _:
            return None


def _about_policy(entry: Entry) -> str | None:
    match entry.event:
        case PolicyAttached(mode="active") as event:
            return f"policy {Chosen.of(event.name, event.params, '')} decides from here on"
        case PolicyAttached() as event:
            return f"policy {Chosen.of(event.name, event.params, '')} watches as {label_of(entry.source)}"
        case PolicyDetached() as event if entry.source != SOURCE:
            return f"shadow {label_of(entry.source)} watches no more{_detail(event.reason)}"
        case PolicyRequested() as event:
            return asked_words(event)
        case _:
            return None


def asked_words(event: PolicyRequested) -> str:
    """What an operator asks for."""
    chosen = Chosen.of(event.name, event.params, "")
    match event.action:
        case "swap":
            return f"asked to let policy {chosen} decide"
        case "shadow":
            return f"asked to let policy {chosen} watch{f' as {event.label}' if event.label else ''}"
        case "promote":
            return f"asked to let shadow {event.label} ({chosen}) decide"
        case "rollback":
            return f"asked to let policy {chosen} decide again"
        case "detach":
            return f"asked to end shadow {event.label}"


def _detail(text: str) -> str:
    said = last_words(text)
    return f": {said}" if said else ""
