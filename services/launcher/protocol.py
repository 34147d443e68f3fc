"""The seam between the supervisor and whatever runs a service: a process here, a thread, later an actor on a cluster."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

from bus.log import WHATEVER


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

    @property
    def source(self) -> str:
        """What it is called in the log."""
        return f"{self.service}:{self.name}" if self.name else self.service

    @property
    def log_name(self) -> str:
        """What its log file is called: one that was asked for has its own, for it runs beside the one whose place it takes."""
        return f"{self.source}-{self.request}" if self.request else self.source


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

    @property
    def pid(self) -> int:
        """Its process, as `ServiceStarted` names it."""

    def poll(self) -> int | None:
        """The exit code (negative: the signal) once it has ended with everything it started, verified; None before. Never blocks."""

    def terminate(self) -> None:
        """Asks it to end in order. Does nothing once it has ended."""

    def kill(self) -> bool:
        """Ends it and everything it started, now; nothing is done once it has ended. False: this kind cannot be killed."""


class Launcher(Protocol):
    """Starts services."""

    def spawn(self, spec: ServiceSpec) -> Handle:
        """Starts one incarnation; returns at once."""
