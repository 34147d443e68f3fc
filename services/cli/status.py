"""`swingshift status RUN`: one fold over the whole log, then who shows signs of life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bus.alive import living_epochs
from bus.books import Books
from bus.entry import Entry
from bus.errors import LogUnavailable
from bus.events import (
    DevicesReloaded,
    DevicesYielded,
    PolicyAttached,
    PolicyDetached,
    RunEnded,
    ServiceLost,
    ServiceStarted,
    ServiceStopped,
    Stalled,
    StepDone,
    SwitchDone,
    SwitchStarted,
)
from services.cli.mistakes import mistakes_explained
from services.cli.source import Source, cut_off, find, open_source
from services.launcher.folders import FoundRun
from services.monitor.last_words import ended_words
from services.monitor.reading import read_all
from services.setting_changes import shown

REWARD = "rollout/mean_reward"


@dataclass
class Status:
    """What a log says about its run."""

    books: Books = field(default_factory=Books)
    position: int = 0
    ended: RunEnded | None = None
    home: bool = True
    running_swing: SwitchStarted | None = None
    swings: int = 0
    last_step: StepDone | None = None
    stalled: Stalled | None = None
    services: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Source -> (epoch, what the log said of it last)."""
    hosts: dict[str, str] = field(default_factory=dict)
    """Source -> name of the machine of its newest incarnation, of those that say it."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        self.books.apply(event)
        self.position = entry.position
        match event:
            case ServiceStarted():
                self.hosts[entry.source] = event.host
                self.services[entry.source] = (entry.epoch, "started")
            case PolicyAttached():
                name = event.name.rpartition(":")[2]
                self.services[entry.source] = (entry.epoch, f"{name} decides" if event.mode == "active" else f"{name} watches")
            case ServiceStopped() | PolicyDetached():
                self.services[entry.source] = (entry.epoch, "stopped")
            case ServiceLost():
                self.services[event.service] = (event.epoch, "lost, restarting" if event.restarting else "lost")
            case SwitchStarted():
                self.running_swing = event
            case SwitchDone():
                self.running_swing = None
                self.swings += 1
            case DevicesYielded():
                self.home = False
            case DevicesReloaded():
                self.home = True
            case RunEnded():
                self.ended = event
            case Stalled():
                self.stalled = event
            case StepDone():
                self.last_step, self.stalled = event, None
            case _:
                pass


def status_command(named: str, redis: str | None, runs: Path) -> None:
    """Prints how the run is doing."""
    with mistakes_explained():
        found = find(named, runs, redis)
        with open_source(found) as source:
            status = read_status(source)
        console = Console()
        alive = signs_of_life(found, list(status.services))
        console.print(_facts(found, status, alive))
        console.print(_services(status, alive))


def read_status(source: Source) -> Status:
    """Folds all entries that are there now."""
    status = Status()
    for entry in read_all(source, source.last_position()):
        status.apply(entry)
    return status


def _facts(found: FoundRun, status: Status, alive: dict[str, int] | None) -> Table:
    books, table = status.books, Table(box=None, show_header=False)
    plan = books.plan
    table.add_row("run", f"{found.run} {_state(found, status, alive)}")
    table.add_row("folder", str(found.folder))
    table.add_row("log", f"{status.position} entries")
    if plan is not None:
        steps = f"{books.steps_done} of {plan.total_steps}, version {books.version}"
        table.add_row("steps", steps + (" (a batch is in training)" if books.batch is not None else ""))
        dropped = ", ".join(f"{count} {reason}" for reason, count in books.dropped.items()) or "none"
        table.add_row("samples", f"{len(books.in_flight)} in flight, {len(books.ready)} ready, {books.trained} trained, dropped: {dropped}")
        table.add_row("room", f"{books.room} of {books.limit} samples may be started (staleness_threshold {books.staleness_threshold:g})")
        if books.settings.changed:
            table.add_row("changed", ", ".join(f"{name} {shown(value)}" for name, value in books.settings.changed.items()))
        table.add_row("devices", _holder(status))
    if status.last_step is not None and REWARD in status.last_step.metrics:
        table.add_row("reward", f"{status.last_step.metrics[REWARD]:.3f} in step {status.last_step.step}")
    if status.stalled is not None:
        stalled = status.stalled
        table.add_row("stalled", f"{stalled.have} of {stalled.need} samples, waiting for {', '.join(stalled.waiting_on)}")
    return table


def _state(found: FoundRun, status: Status, alive: dict[str, int] | None) -> str:
    if status.ended is not None:
        return ended_words(status.ended)
    if alive is None:
        return cut_off(found)
    return "(stopping)" if status.books.stop_requested else "(running)"


def _holder(status: Status) -> str:
    holder = "with the trainer" if status.home else "lent to the hybrid replicas"
    swing = status.running_swing
    return f"{holder}, {status.swings} swings" + (f"; swing {swing.swing} to {swing.target} runs" if swing is not None else "")


def _services(status: Status, alive: dict[str, int] | None) -> Table:
    several = on_several(status.hosts)
    table = Table("service", "epoch", "said last", "alive", *(("on",) if several else ()), box=None)
    for source, (epoch, said) in sorted(status.services.items()):
        sign = "?" if alive is None else "yes" if alive.get(source) == epoch else "no"
        table.add_row(source, str(epoch), said, sign, *((status.hosts.get(source, "?"),) if several else ()))
    return table


def on_several(hosts: Mapping[str, str]) -> bool:
    """Services are on several machines, so it is of interest on which."""
    return len(set(hosts.values())) > 1


def signs_of_life(found: FoundRun, services: Sequence[str]) -> dict[str, int] | None:
    """Service -> epoch that shows a sign of life; None when there is no server to ask."""
    if found.url is None:
        return None
    from bus.connection import Connection

    connection = Connection(found.url)
    try:
        return living_epochs(connection, found.run, services)
    except LogUnavailable:
        return None
    finally:
        connection.close()
