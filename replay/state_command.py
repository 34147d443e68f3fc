"""`swingshift replay state`: the run at one position, told to a person or, whole, as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from bus.core import Core
from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import PolicyAttached, RunPlanned, ServiceStarted, ShadowVerdict, SwitchRequested
from policies.registry import nearest
from replay.bar import Bar
from replay.pattern import Pattern
from replay.show import json_of, line_of, row_at
from replay.state_dump import Json, dump
from replay.state_view import LABEL_WIDTH, state_lines
from replay.travel import Travel
from services.policy.core import PolicyCore

INDENT = "  "


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: right after a step, at a position, or where the first entry after it is like a pattern."""

    step: int | None = None
    at: int | None = None
    until: str | None = None

    def find(self, travel: Travel) -> int:
        """Raises ConfigError when there is no such place."""
        if self.step is not None and self.at is not None:
            raise ConfigError("--step and --at both say where to look: give one of them")
        position = 0
        if self.step is not None:
            position = travel.position_of_step(self.step)
        elif self.at is not None:
            position = travel.check(self.at)
        if self.until is not None:
            return travel.find(Pattern.parse(self.until), position)
        return position or travel.last


def state_command(folder: Path, place: Place, service: str | None, *, as_json: bool, interactive: bool) -> None:
    """Prints the state, or opens a session there."""
    with Bar() as bar, Travel.open(folder, partial(_track, bar)) as travel:
        sources = named_sources(travel, service)
        if interactive:
            from replay.session import Session, converse

            position = place.find(travel) if place != Place() else 1
            converse(Session(travel, position, sources, typer.echo))
            return
        position = place.find(travel)
        if as_json:
            typer.echo(json.dumps(state_json(travel, position, sources)))
            return
        typer.echo(f"{folder}: entry {position} of {travel.last}")
        for line in state_text(travel, position, sources):
            typer.echo(fitted(line))


def _track(bar: Bar, ends: Iterable[int], first: int, last: int) -> Iterable[int]:
    return bar.follow_to(ends, "reading the log", last - first, lambda end: end - first)


def named_sources(travel: Travel, service: str | None) -> Sequence[str]:
    """The service that was asked for, or all. Raises ConfigError for one without a core."""
    if service is None:
        return travel.sources
    if service not in travel.sources:
        guess = nearest(service, travel.sources)
        raise ConfigError(f"{service!r} decides nothing in this run: did you mean {guess!r}? There are {', '.join(travel.sources)}")
    return (service,)


def state_text(travel: Travel, position: int, sources: Sequence[str]) -> list[str]:
    """The entry, its cause, and what each core's state says."""
    row = row_at(travel.recording, position)
    lines = [line_of(row)]
    if 0 < row.cause < position:
        lines += ["because of", line_of(row_at(travel.recording, row.cause))]
    for source, core in travel.cores(position, sources).items():
        lines += ["", _heading(travel, source, position)]
        lines += [f"{INDENT}{label:<{LABEL_WIDTH}} {text}" for label, text in core_lines(travel, source, core, position)]
    return lines


def fitted(line: str) -> str:
    """A line that goes on below where a terminal has no room for all of it."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(line)
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * (len(INDENT) + LABEL_WIDTH + 1), break_long_words=False)


def core_lines(travel: Travel, source: str, core: Core, position: int) -> list[tuple[str, str]]:
    """What the core's state says; of a policy also its newest verdict, which is in the log and not in the state."""
    lines = state_lines(core)
    verdict = _verdict(travel, source, core, position)
    if verdict is None:
        return lines
    at, event = verdict
    what = "an amendment" if event.amends is not None else "an extra request" if event.answers is None else f"on boundary {event.answers}"
    evidence = ", ".join(f"{name} {value:g}" for name, value in event.evidence.items())
    said = ("last verdict", f"{event.target} ({event.reason}), {what}, back at {event.give_back_at} ready, at {at}")
    return [*lines, said, *([("its evidence", evidence)] if evidence else [])]


def _verdict(travel: Travel, source: str, core: Core, position: int) -> tuple[int, SwitchRequested | ShadowVerdict] | None:
    """(where, what) the newest one of a policy."""
    if not isinstance(core, PolicyCore):
        return None
    entry = travel.newest(source, position, (SwitchRequested.kind, ShadowVerdict.kind))
    return None if entry is None or not isinstance(entry.event, SwitchRequested | ShadowVerdict) else (entry.position, entry.event)


def _heading(travel: Travel, source: str, position: int) -> str:
    start = travel.started(source, position)
    if start is None:
        return f"{source}: not started yet"
    ours, theirs = travel.code(source, position), _code(start)
    other = "" if theirs in (ours, "") else f"; it ran code {theirs}, told by this checkout's {ours}"
    return f"{source}/{start.epoch}, since entry {start.position}{other}"


def _code(start: Entry) -> str:
    return start.event.code if isinstance(start.event, ServiceStarted | PolicyAttached) else ""


def state_json(travel: Travel, position: int, sources: Sequence[str]) -> dict[str, object]:
    """Everything, for tools."""
    row = row_at(travel.recording, position)
    first = travel.recording.entry(1).event
    plan = first if isinstance(first, RunPlanned) else None
    return {
        "run": travel.recording.run,
        "position": position,
        "last_position": travel.last,
        "entry": json_of(row),
        "cause": json_of(row_at(travel.recording, row.cause)) if 0 < row.cause < position else None,
        "plan": None if plan is None else plan.model_dump(),
        "services": {
            source: _service_json(travel, source, core, position, plan) for source, core in travel.cores(position, sources).items()
        },
    }


def _service_json(travel: Travel, source: str, core: Core, position: int, plan: RunPlanned | None) -> dict[str, Json]:
    start = travel.started(source, position)
    verdict = _verdict(travel, source, core, position)
    return {
        "epoch": None if start is None else start.epoch,
        "code": None if start is None else _code(start),
        "code_of_checkout": travel.code(source, position),
        "lines": [[label, text] for label, text in core_lines(travel, source, core, position)],
        "outstanding": [dump(request, plan) for request in core.outstanding()],
        "deadlines": [dump(deadline, plan) for deadline in core.deadlines()],
        "last_verdict": None if verdict is None else {"position": verdict[0], "event": dump(verdict[1])},
        "state": dump(core, plan),
    }
