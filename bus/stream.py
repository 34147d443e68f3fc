"""An entry as an item of a Redis Stream: id `POSITION-0` and the fields of the envelope, as `append.lua` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from bus.codec import MAX_BYTES, encode
from bus.entry import Draft, Entry, Producer
from bus.errors import CodecError, LogChanged
from bus.keys import Keys
from bus.recording import Row
from bus.wire import Argument, Reply

Mode = Literal["append", "attach", "create"]

FIELDS = [b"kind", b"version", b"source", b"epoch", b"derived", b"cause", b"at", b"chain", b"body"]


def position_of(item: Reply) -> int:
    """The position in an item's id."""
    return int(cast("list[bytes]", item)[0].partition(b"-")[0])


def chain_of(item: Reply) -> str:
    """The chain value of an item, "" if it has none."""
    fields = cast("tuple[bytes, list[bytes]]", item)[1]
    return fields[15].decode("ascii", "replace") if fields[::2] == FIELDS else ""


def row_of(run: str, item: Reply, previous: str | None = None) -> Row:
    """An item as it is stored in a recording, with the very bytes of its body, whichever version of swingshift wrote it.

    Raises CodecError with its position; LogChanged when `previous`, if given, is not the chain that it follows on.
    """
    position = position_of(item)
    fields = cast("tuple[bytes, list[bytes]]", item)[1]
    if fields[::2] != FIELDS:
        raise CodecError(f"run {run}: entry {position} was not written by swingshift: its fields are {fields[::2]}")
    kind, version, source, epoch, derived, cause, at, digest, body = fields[1::2]
    is_derived = int(derived == b"1")
    try:
        who = (source.decode(), int(epoch))
        row = Row(position, kind.decode(), int(version), *who, is_derived, int(cause), int(at), digest.decode(), body)
    except ValueError as error:
        raise CodecError(f"run {run}: entry {position} cannot be read: {error}") from error
    if previous is not None and row.link(previous) != row.chain:
        raise LogChanged(
            f"run {run}: entry {position} has chain {row.chain}, which does not follow on {previous}, the chain of entry {position - 1} "
            "that this client read: the log was rewritten; start this service anew"
        )
    return row


def entry_of(run: str, item: Reply, previous: str | None = None) -> Entry:
    """The entry in an item. Raises as `row_of` does, and CodecError when its event cannot be read."""
    row = row_of(run, item, previous)
    try:
        return row.entry()
    except CodecError as error:
        raise CodecError(f"run {run}: {error}") from error


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls the append script: of which log it is a client, and by which name its retries are known."""

    keys: Keys
    log_id: str
    name: str

    def append(self, mode: Mode, top: int, producer: Producer, drafts: Sequence[Draft], counter: int) -> tuple[list[str], list[Argument]]:
        """Keys and arguments of one call. `top`: the highest position that this client knows; `counter`: the number of its append."""
        inboxes: dict[str, int] = {}
        entries: list[Argument] = []
        for draft in drafts:
            name = draft.event.inbox()
            inbox = 0 if name is None else inboxes.setdefault(name, len(inboxes) + 1)
            event = draft.event
            entries += (event.kind, event.schema_version, int(draft.derived), draft.cause, draft.at, inbox, encode(event))
        keys = [self.keys.log, self.keys.meta, *(self.keys.inbox(name) for name in inboxes)]
        who: list[Argument] = [mode, self.log_id, top, producer.source, producer.epoch, self.name, counter]
        return keys, [*who, MAX_BYTES, len(inboxes), len(drafts), *inboxes, *entries]
