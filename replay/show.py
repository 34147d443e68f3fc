"""The entries of a recording, one a line: all of them, those that have to do with something, or the chain of causes of one."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgpack
import typer

from bus.errors import CodecError, ConfigError
from bus.events import KINDS
from bus.fields import fields_text
from bus.recording import Recording, Row
from bus.sources import REPLICA_PREFIX
from replay.pattern import check_kind

Body = Mapping[str, object]


@dataclass(frozen=True)
class Filter:
    """What an entry must have to do with; None: anything."""

    sample: int | None = None
    request: str | None = None
    swing: int | None = None
    replica: str | None = None
    step: int | None = None
    grep: str | None = None

    @property
    def takes_all(self) -> bool:
        """Nothing is asked for."""
        return all(wish is None for wish in (self.sample, self.request, self.swing, self.replica, self.step, self.grep))

    @cached_property
    def _expression(self) -> re.Pattern[str] | None:
        try:
            return None if self.grep is None else re.compile(self.grep)
        except re.error as error:
            raise ConfigError(f"--grep {self.grep!r} is no regular expression: {error}") from error

    def takes(self, row: Row) -> bool:
        """The row has to do with all that is asked for. One that cannot be read is found by `grep` only."""
        if self.takes_all:
            return True
        body = _body(row)
        tests: tuple[tuple[object, Callable[[Row, Body], bool]], ...] = (
            (self.sample, self._is_of_sample),
            (self.request, lambda row, body: self.request in _requests(body)),
            (self.swing, lambda row, body: self.swing in (body.get("swing"), body.get("amends"))),
            (self.replica, self._is_of_replica),
            (self.step, lambda row, body: self.step == body.get("step")),
        )
        if not all(test(row, body) for wish, test in tests if wish is not None):
            return False
        return self._expression is None or self._expression.search(line_of(row)) is not None

    def _is_of_sample(self, row: Row, body: Body) -> bool:
        own = f"{self.sample}."
        named = self.sample == body.get("sample") or self.sample in _listed(body, "samples")
        return named or any(isinstance(request, str) and request.startswith(own) for request in _requests(body))

    def _is_of_replica(self, row: Row, body: Body) -> bool:
        source = f"{REPLICA_PREFIX}{self.replica}"
        return (
            source in (row.source, body.get("service")) or self.replica == body.get("replica") or self.replica in _listed(body, "replicas")
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of a recording: positions, kinds and sources; none named: all."""

    first: int = 1
    last: int | None = None
    kinds: Sequence[str] = ()
    sources: Sequence[str] = ()


def show_command(folder: Path, span: Span, wish: Filter, *, as_json: bool) -> None:
    """Prints the entries of a part that have to do with all that is asked for."""
    for kind in span.kinds:
        check_kind(kind)
    with Recording.open(folder) as recording, closing(recording.rows(span.first, span.last, span.kinds, span.sources)) as rows:
        _print(filter(wish.takes, rows), as_json=as_json)


def why_command(folder: Path, position: int, *, as_json: bool) -> None:
    """Prints an entry and what led to it, back to a fact."""
    with Recording.open(folder) as recording:
        chain = causes(recording, position)
        _print(chain, as_json=as_json)
    last = chain[-1]
    if last.cause and not as_json:
        typer.echo(f"a fact, which followed entry {last.cause}: --why {last.cause} goes on")


def causes(recording: Recording, position: int) -> list[Row]:
    """The entry at `position`, its cause, and so on back to a fact. Raises ConfigError when it is not there."""
    chain = [row_at(recording, position)]
    # A cause is an earlier entry, or the recording was tampered with.
    while (chain[-1].derived or len(chain) == 1) and 0 < chain[-1].cause < chain[-1].position:
        chain.append(row_at(recording, chain[-1].cause))
    return chain


def row_at(recording: Recording, position: int) -> Row:
    """Raises ConfigError when there is none."""
    for row in recording.rows(position, position):
        return row
    raise ConfigError(f"{recording.path} has no entry {position}: it has those from 1 to {recording.last_position()}")


def _print(rows: Iterable[Row], *, as_json: bool) -> None:
    for row in rows:
        typer.echo(json.dumps(json_of(row)) if as_json else clipped(line_of(row)))


# --- one entry -------------------------------------------------------------------------------------------------------------------


def line_of(row: Row) -> str:
    """Position, time, source/epoch, cause, kind and fields; a decision has a `*`."""
    moment = datetime.fromtimestamp(row.at / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    mark = "*" if row.derived else " "
    return f"{row.position:>7} {moment} {f'{row.source}/{row.epoch}':<16} {row.cause:>7} {mark}{row.kind} {_fields(row)}"


def _fields(row: Row) -> str:
    try:
        event = row.entry().event
    except CodecError as error:
        return f"?? {error}"
    return fields_text(event)


def json_of(row: Row) -> dict[str, object]:
    """The envelope, and the event under `event`; `error` instead when it cannot be read."""
    envelope: dict[str, object] = {**row._asdict(), "derived": bool(row.derived)}
    del envelope["body"]
    try:
        return envelope | {"event": row.entry().event.model_dump()}
    except CodecError as error:
        return envelope | {"error": str(error)}


def clipped(line: str) -> str:
    """As much of a line as a terminal has room for; all of it where there is none."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(line)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _body(row: Row) -> Body:
    """The fields as they are stored, without the cost of validating what will not be shown; none when they cannot be read."""
    kind = KINDS.get(row.kind)
    try:
        if kind is None or row.version != kind.schema_version:
            return row.entry().event.model_dump()
        body = msgpack.unpackb(row.body)
    except (CodecError, ValueError, msgpack.UnpackException):
        return {}
    return body if isinstance(body, dict) else {}


def _requests(body: Body) -> Sequence[object]:
    return (body.get("request"), *_listed(body, "requests"))


def _listed(body: Body, name: str) -> Sequence[object]:
    value = body.get(name)
    return value if isinstance(value, list | tuple) else ()
