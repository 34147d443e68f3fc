"""What every event is: a frozen pydantic model with a stable kind, a schema version and exactly one emitting role."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["trainer", "rollouter", "replica", "controller", "policy", "janitor", "supervisor", "operator", "archiver", "monitor"]
Value = str | int | float | bool | None
"""A leaf of an event's body. Containers are lists and string-keyed dicts of these."""
Target = Literal["train", "rollout"]


class Frozen(BaseModel):
    """A frozen model that refuses unknown fields: what events and their parts are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Event(Frozen):
    """One thing that happened (past tense) or that somebody is asked to do (`…Requested`)."""

    kind: ClassVar[str]
    """Stable name on the wire; survives renaming the class."""
    schema_version: ClassVar[int] = 1
    emitter: ClassVar[Role | None] = None
    """The one role that may append this kind; None: every service. Kinds whose emitter depends on a field override `emitted_by`."""

    def emitted_by(self) -> tuple[Role, ...] | None:
        """Roles that may append this event; None means any service."""
        return None if self.emitter is None else (self.emitter,)

    def inbox(self) -> str | None:
        """Name of the replica in whose inbox this event is mirrored, if any."""
        return None


class WeightsDelta(Frozen):
    """What published weights differ in from those of an earlier version. Who has these can do with it, and with the digest of the whole."""

    base_version: int
    base_revision: int
    uri: str
    num_bytes: int


class DirectWeights(Frozen):
    """Where the publisher hands out its newest weights without a file in between, and by which means.

    What the run's services prove themselves with there is not in the log: services/payloads.py.
    """

    address: str
    """host:port"""
    transports: tuple[str, ...]
    """`nccl`, `ipc`."""
    machine: str = ""
    """Which one it is on, to compare with one's own."""
    devices: tuple[str, ...] = ()
    """Its devices as planned; the first one sends."""


class BlobRef(Frozen):
    """Where a payload lies: its name under the run's blobs, its size in bytes and its digest (blake2b-128, hex)."""

    name: str
    num_bytes: int
    digest: str
