"""What the driver and its actors say to each other: JSON text, for nothing but starts, ends and exit codes goes over Ray.

driver ──Order──▶ actor ──▶ service          driver ◀──Where, Begun, Ended── actor          driver ──Remains──▶ sweep
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from services.launcher.protocol import RunPlace, ServiceSpec


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Where(_Message):
    """Where an actor is. actor -> driver."""

    node: str
    """Ray's id of the node."""
    host: str
    address: str
    """The node's, for the others."""
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES names them on that node."""

    @property
    def label(self) -> str:
        """What people know the node by."""
        return label_of(self.node, self.host)


class Order(_Message):
    """Start this. driver -> actor."""

    place: RunPlace
    spec: ServiceSpec
    command: tuple[str, ...] | None
    """In place of the service's own, for tests."""
    environment: dict[str, str]
    """What its process has besides its actor's."""
    working_folder: Path
    """The driver's: relative paths of the configuration are meant from there."""
    label: str
    """What people know the actor's node by."""


class Begun(_Message):
    """It has been started. actor -> driver."""

    pid: int
    """Of the process, and of its group."""
    since: int
    """When it began, in ticks since its machine did: tells it from a later process of the same number."""


class Ended(_Message):
    """It has ended, with everything it started. actor -> driver."""

    code: int
    how: str


class Remains(_Message):
    """What may be left of a service whose actor has died. driver -> a task on its node."""

    token: str
    begun: Begun | None
    """None: nobody knows whether it was started."""


class Left(_Message):
    """Processes of it that still live. That task -> driver."""

    pids: tuple[int, ...]


def label_of(node: str, host: str) -> str:
    """Host and a piece of Ray's id, for two nodes may have one host's name."""
    return f"{host} ({node[:8]})"
