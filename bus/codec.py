"""Events to msgpack bodies and back; older schema versions are upcast on read, one function a step.

Only validated models are encoded, so a body holds str, int, float, bool, None, lists and string-keyed dicts, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgpack
from pydantic import BaseModel, ValidationError

from bus.errors import CodecError, EntryTooLarge
from bus.events import KINDS, Event

logger = logging.getLogger(__name__)

WARN_BYTES = 16 * 1024
MAX_BYTES = 256 * 1024

Body = dict[str, Any]
UPCASTERS: dict[tuple[str, int], Callable[[Body], Body]] = {}
"""(kind, version) -> the function that makes a body of version + 1 of it."""


def encode(event: Event) -> bytes:
    """The event's body. Raises EntryTooLarge over 256 KiB: large data belongs into a blob."""
    body: bytes = msgpack.packb(event.__dict__, default=_fields)
    if len(body) > MAX_BYTES:
        raise EntryTooLarge(
            f"a {event.kind} has a body of {len(body)} bytes, the limit is {MAX_BYTES}: put the data into a blob and carry its name"
        )
    if len(body) > WARN_BYTES:
        logger.warning("large entry: kind=%s bytes=%d limit=%d; large data belongs into a blob", event.kind, len(body), MAX_BYTES)
    return body


def decode(kind: str, version: int, body: bytes) -> Event:
    """The event of a body. Raises CodecError for an unknown kind, a newer schema or a broken body."""
    model = KINDS.get(kind)
    if model is None:
        raise CodecError(f"entry of unknown kind {kind!r}: it was written by another version of swingshift; read it with that one")
    if not 1 <= version <= model.schema_version:
        raise CodecError(_unknown_schema(kind, version, model.schema_version))
    try:
        fields: Body = msgpack.unpackb(body)
        if version < model.schema_version:
            for step in range(version, model.schema_version):
                fields = UPCASTERS[kind, step](fields)
        # What `model_validate` comes down to, for a million entries.
        event: Event = model.__pydantic_validator__.validate_python(fields)
        return event
    except (ValueError, TypeError, KeyError, msgpack.UnpackException, ValidationError) as error:
        raise CodecError(f"the body of a {kind} (schema {version}, {len(body)} bytes) cannot be read: {error}") from error


def _unknown_schema(kind: str, version: int, newest: int) -> str:
    if version < 1:
        return f"{kind} has schema {version}, schemas begin at 1: the entry was damaged"
    return f"{kind} has schema {version}, this version of swingshift reads up to {newest}: upgrade it"


def _fields(part: object) -> Body:
    """The fields of a model within an event."""
    if isinstance(part, BaseModel):
        return part.__dict__
    raise CodecError(
        f"an event holds a {type(part).__name__}: only str, int, float, bool, None, lists and string-keyed dicts can be written"
    )
