"""The seam between a run and where its services are: processes of this machine, threads, or actors of a cluster.

    Site ─launching─▶ Launcher ─spawn(spec)─▶ Handle: one incarnation
                          ▲                     │ poll, waits_for, how_it_ended
                          └──── supervisor ◀────┘ terminate, kill

Nothing but starts, ends and exit codes goes over it; whatever services have to say to each other is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from bus.log import WHATEVER

if TYPE_CHECKING:
    from bus.events import RunPlanned
    from services.config import RunConfig
    from services.devices import Machine

Say = Callable[[str], None]
"""Tells the user something, now; from any thread."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Which service is to run; `name` for replicas and shadows only."""

    service: str
    name: str = ""
    _: KW_ONLY
    request: int = 0
    """A policy's: position of the PolicyRequested that chose it; 0: the plan did."""
    candidate: bool = False
    """A policy's: it is to warm up and to answer in trial before it attaches."""
    after: int = WHATEVER
    """A policy's: it may only follow this epoch, for a newer choice may attach before it does."""
    token: str = ""
    """What its first word in the log is known by: no two incarnations of a run have the same one."""
    device: str | None = None
    """On a cluster: the GPUs that it was given, by the names that its process has for them; empty: none. None: it is not on one."""
    rank: int = 0
    """A trainer's: which of its ranks; rank 0 is the service."""

    @property
    def source(self) -> str:
        """What it is called in the log."""
        return f"{self.service}:{self.name}" if self.name else self.service

    @property
    def log_name(self) -> str:
        """What its log file is called: one that was asked for has its own, for it runs beside the one whose place it takes."""
        number = f"-{self.request}" if self.request else ""
        return f"{self.source}{number}-rank{self.rank}" if self.rank else f"{self.source}{number}"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where the services of a run find each other."""

    url: str
    run: str
    folder: Path

    def log_file(self, source: str) -> Path:
        """What a service said, all its incarnations after each other."""
        return self.folder / "logs" / f"{source.replace(':', '-')}.log"


class Handle(Protocol):
    """One incarnation that was started."""

    def poll(self) -> int | None:
        """The exit code (negative: the signal) once it has ended with everything it started, verified; None before. Never blocks."""

    def terminate(self) -> None:
        """Asks it to end in order. Does nothing once it has ended."""

    def kill(self) -> bool:
        """Ends it and everything it started, now; nothing is done once it has ended. False: this kind cannot be killed."""

    def waits_for(self) -> str:
        """What it needs in order to start and has not got yet, such as "a node with 1 GPU"; empty: nothing. Never blocks."""

    def how_it_ended(self) -> str:
        """Its exit and its last words, once `poll` has given a code."""


class Launcher(Protocol):
    """Starts services."""

    def spawn(self, spec: ServiceSpec) -> Handle:
        """Starts one incarnation; returns at once."""


class Site(Protocol):
    """Where the services of a run are started. Within `with`: at its end nothing of it is left."""

    @property
    def multi_machine(self) -> bool:
        """Services may be on different machines: memory and processes of one are not seen by another."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def machine(self, config: RunConfig) -> Machine:
        """What a plan may use. Raises ConfigError when there is no such place."""

    def check(self, plan: RunPlanned, config: RunConfig, say: Say, *, goes_on: bool = False) -> None:
        """Raises ConfigError for what the run needs and is not there; asked before anything is made.

        `goes_on`: it was planned before, perhaps elsewhere.
        """

    def clear(self, run: str, *, has_ended: bool) -> None:
        """Frees shared memory that a run left, as far as nobody can use it any more. `has_ended`: its log says so."""

    def preview(self, plan: RunPlanned, config: RunConfig) -> Sequence[tuple[str, str]]:
        """Who would be where, for people, as far as the plan's devices do not say it. Raises ConfigError where somebody has no place."""

    def launching(self, place: RunPlace, plan: RunPlanned, config: RunConfig, say: Say) -> AbstractContextManager[Launcher]:
        """Starts services while its block runs; at its end nobody is left behind.

        Raises ConfigError when it begins, before the run's log is made, if there is no room for all of them.
        """
