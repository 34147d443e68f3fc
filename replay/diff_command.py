"""`swingshift replay diff`: tells the first difference of two recordings, with what is around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from bus.recording import Recording
from replay.bar import Bar
from replay.diff import Comparison, compare
from replay.diff_classify import Difference
from replay.diff_lens import Lens
from replay.show import clipped, json_of, line_of

MEANS = {
    "plan": "The runs were to differ: compare runs of one plan.",
    "decision": "The core of this service is other code, or depends on something besides the log: `swingshift replay verify` on both says "
    "which of them this checkout agrees with.",
    "fact": "Something outside came out differently: an engine, the learner, a reward, a process that was lost.",
    "order": "Nothing is wrong: what is done at the same time comes in any order, and from there on the runs go their own ways.",
    "shorter": "All that both have is equal: one was stopped, is still running, or its tail was cut.",
}
MARK = ">"


@dataclass(frozen=True, slots=True)
class Sides:
    """Two recordings with their folders."""

    folders: tuple[Path, Path]
    recordings: tuple[Recording, Recording]


def diff_command(a: Path, b: Path, context: int, *, strict: bool, as_json: bool) -> bool:
    """Prints the first difference; true when there is none."""
    with Bar() as bar, Recording.open(a) as left, Recording.open(b) as right:
        total = min(left.last_position(), right.last_position())
        result = compare(left, right, Lens(strict), lambda pairs: bar.follow(pairs, "comparing", total))
        sides = Sides((a, b), (left, right))
        if as_json:
            typer.echo(json.dumps(_as_json(sides, result)))
        else:
            for line in _told(sides, result, context):
                typer.echo(line)
    return result.difference is None


def _told(sides: Sides, result: Comparison, context: int) -> Iterator[str]:
    for name, folder, recording in zip("AB", sides.folders, sides.recordings, strict=True):
        yield f"{name}: {folder}, run {recording.run}, {recording.last_position()} entries"
    for source, (one, other) in result.codes.items():
        yield f"{source} ran other code: {one or 'none'} in A, {other or 'none'} in B"
    for path, here, there in result.machines:
        yield f"planned for another machine: {path} is {_short(here)} in A, {_short(there)} in B"
    difference = result.difference
    if difference is None:
        yield f"equal: all {result.compared} entries"
        return
    yield f"the first {result.compared} entries are equal"
    yield f"{difference.kind}: {difference.what}"
    for path, here, there in difference.fields:
        yield f"  {path}: {_short(here)} in A, {_short(there)} in B"
    yield MEANS[difference.kind]
    for name, recording, position in zip("AB", sides.recordings, difference.positions, strict=True):
        yield from _surroundings(name, recording, position or result.compared + 1, context, marked=position)
    yield from _commands(sides, difference)


def _surroundings(name: str, recording: Recording, position: int, context: int, marked: int) -> Iterator[str]:
    yield f"{name}:"
    for row in recording.rows(max(1, position - context), position + context):
        yield clipped(f"{MARK if row.position == marked else ' '}{line_of(row)}")


def _commands(sides: Sides, difference: Difference) -> Iterator[str]:
    for folder, position in zip(sides.folders, difference.positions, strict=True):
        if position:
            yield f"swingshift replay state {folder} --at {position}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _as_json(sides: Sides, result: Comparison) -> dict[str, object]:
    difference = result.difference
    found: dict[str, object] = {
        "equal": difference is None,
        "compared": result.compared,
        "codes": result.codes,
        "machines": result.machines,
    }
    if difference is None:
        return found
    return found | {
        "kind": difference.kind,
        "what": difference.what,
        "fields": [list(each) for each in difference.fields],
        "entries": [_entry(recording, at) for recording, at in zip(sides.recordings, difference.positions, strict=True)],
    }


def _entry(recording: Recording, position: int) -> dict[str, object] | None:
    rows: Sequence[dict[str, object]] = [json_of(row) for row in recording.rows(position, position)]
    return rows[0] if rows else None
