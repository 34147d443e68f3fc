"""The seam between the supervisor and whatever runs a service: a process here, a thread, later an actor on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.context import REPLICA


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Which service is to run; `name` for replicas only."""

    service: str
    name: str = ""

    @property
    def source(self) -> str:
        """What it is called in the log."""
        return f"{REPLICA}:{self.name}" if self.name else self.service


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
