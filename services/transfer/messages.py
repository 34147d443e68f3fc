"""What trainer and replica say to each other about a direct transfer. Weights themselves never go this way, only what is known about them.

    replica   Hello ─────▶ Challenge ─────▶ Proof ─────▶ Welcome      each end proves that it knows the run's token
              Take ──────▶ Offer ─────────▶ Begin ─────▶ Call …       the trainer's end has the engine do what the transfer needs
              Done, Failed ◀──────────────────────────── … Sent

Instead of any answer of the trainer's there may be `Refused`: then the retained copy is what is left.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeVar

import msgpack
from pydantic import Field, ValidationError

from bus.errors import TransferError
from bus.events.base import Frozen

NONCE_BYTES = 32
Calls = Literal["join", "start", "receive", "finish"]


class Message(Frozen):
    """One of them."""

    kind: ClassVar[str]


class Hello(Message):
    """replica -> trainer: who it is."""

    kind = "hello"
    replica: str = Field(min_length=1, max_length=128)
    epoch: int
    nonce: bytes = Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)


class Challenge(Message):
    """trainer -> replica: proof that it knows the token, and what the replica is to prove it with."""

    kind = "challenge"
    nonce: bytes = Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)
    proof: bytes


class Proof(Message):
    """replica -> trainer."""

    kind = "proof"
    proof: bytes


class Welcome(Message):
    """trainer -> replica: any number of transfers may follow on this connection."""

    kind = "welcome"


class Take(Message):
    """replica -> trainer: these weights, by this way, to so many workers on these devices of the plan, within so many seconds."""

    kind = "take"
    version: int
    revision: int
    transport: str
    workers: int = Field(ge=1, le=1024)
    devices: tuple[str, ...] = ()
    limit_s: float = Field(gt=0)


class Offer(Message):
    """trainer -> replica: what there is. The three lists are of one length."""

    kind = "offer"
    digest: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class Begin(Message):
    """replica -> trainer: these of them, in this order."""

    kind = "begin"
    names: list[str]


class Call(Message):
    """trainer -> replica: what its engine is to do now. `info` is the engine's business."""

    kind = "call"
    call: Calls
    info: dict[str, object] = Field(default_factory=dict)


class Done(Message):
    """replica -> trainer: the call has ended well."""

    kind = "done"


class Failed(Message):
    """replica -> trainer: it has not, or the replica does not want the weights after all."""

    kind = "failed"
    error: str


class Sent(Message):
    """trainer -> replica: the transfer is complete."""

    kind = "sent"
    num_bytes: int
    seconds: float


class Refused(Message):
    """trainer -> replica: why it does not go on."""

    kind = "refused"
    reason: str


KINDS: dict[str, type[Message]] = {
    message.kind: message for message in (Hello, Challenge, Proof, Welcome, Take, Offer, Begin, Call, Done, Failed, Sent, Refused)
}

M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The message with its kind."""
    packed: bytes = msgpack.packb([message.kind, message.model_dump()])
    return packed


def decode(data: bytes) -> Message:
    """The message. Raises TransferError for anything that is none."""
    try:
        kind, body = msgpack.unpackb(data)
        return KINDS[kind].model_validate(body)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException, ValidationError) as error:
        raise TransferError(f"{len(data)} bytes are no message about a transfer of weights: {type(error).__name__}") from error


def expected(message: Message, kind: type[M]) -> M:
    """The message, if it is of that kind. Raises TransferError for another one, with what a refusal says."""
    if isinstance(message, kind):
        return message
    if isinstance(message, Refused):
        raise TransferError(f"the trainer refuses: {message.reason}")
    if isinstance(message, Failed):
        raise TransferError(f"the replica has failed: {message.error}")
    raise TransferError(f"{message.kind} came where {kind.kind} was expected")
