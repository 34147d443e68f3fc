"""`swingshift replay`: look at a recorded run, and check it.

    verify DIR      every link of the chain, every decision, every invariant; exit status 1 when something is not as it should be
    show DIR        the entries, one a line

Imports what it needs when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bus.recording import Row
    from replay.verify import Difference, Report

MISTAKEN = 2
"""Exit status when the command cannot be followed."""

app = typer.Typer(help="Recorded runs: check them, look at them.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, such as runs/RUN.")]


@app.command()
def verify(folder: Folder, limit: Annotated[int, typer.Option(min=0, help="Most differences to print of each sort; 0: all.")] = 20) -> None:
    """Recompute every decision of a recorded run, and every link of its chain. Exit status 1 when there is a difference."""
    from replay.progress import Watch
    from replay.recorded import verify_recording
    from replay.subjects import subjects

    with _mistakes_explained():
        began = time.monotonic()
        with Watch() as watch:
            report = verify_recording(folder, subjects(), watch.track)
        _print_report(folder, report, time.monotonic() - began, limit or sys.maxsize)
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def show(
    folder: Folder,
    kind: Annotated[list[str], typer.Option(help="Only entries of this kind; may be given several times.")] = [],  # noqa: B006
    source: Annotated[list[str], typer.Option(help="Only entries of this source; may be given several times.")] = [],  # noqa: B006
    first: Annotated[int, typer.Option("--from", min=1, help="First position.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last position.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing shortened.")] = False,
) -> None:
    """List the entries of a recorded run: position, time, source/epoch, cause, kind and fields; decisions have a `*`."""
    from bus.recording import Recording

    with _mistakes_explained(), Recording.open(folder) as recording:
        _check_kinds(kind)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        for row in recording.rows(first, last, kind, source):
            typer.echo(_as_json(row) if as_json else _clip(_as_line(row), width))


def _print_report(folder: Path, report: Report, seconds: float, limit: int) -> None:
    from replay.recorded import SUMMARY

    _print_differences(report.differences, limit)
    if report.other_code:
        typer.echo(f"other code: {_count(report.other_code)} in incarnations whose code is not that of this checkout")
        _print_differences(report.other_code, limit)
    typer.echo(f"{folder}: {report.entries} entries, {report.decisions} decisions recomputed in {seconds:.1f} s")
    if report.passed:
        without = "" if (folder / SUMMARY).exists() else f"; without a {SUMMARY} a cut tail would not be found"
        whose = " of this checkout's code" if report.other_code else ""
        typer.echo(f"passed: the chain is whole, every decision{whose} is what its core decides, every invariant holds{without}")
    else:
        where = "at" if len(report.differences) == 1 else "the first at"
        typer.echo(f"FAILED: {_count(report.differences)}, {where} position {report.differences[0].position}")


def _print_differences(differences: Sequence[Difference], limit: int) -> None:
    for difference in differences[:limit]:
        typer.echo(str(difference))
    if len(differences) > limit:
        typer.echo(f"… and {len(differences) - limit} more; --limit 0 prints all")


def _count(differences: Sequence[Difference]) -> str:
    return "1 difference" if len(differences) == 1 else f"{len(differences)} differences"


def _check_kinds(kinds: Sequence[str]) -> None:
    from bus.errors import ConfigError
    from bus.events import KINDS
    from policies.registry import nearest

    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"there is no kind {kind!r}: did you mean {nearest(kind, tuple(KINDS))!r}?")


def _as_line(row: Row) -> str:
    moment = datetime.fromtimestamp(row.at / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    mark = "*" if row.derived else " "
    return f"{row.position:>7} {moment} {f'{row.source}/{row.epoch}':<16} {row.cause:>7} {mark}{row.kind} {_fields(row)}"


def _fields(row: Row) -> str:
    from bus.errors import CodecError

    try:
        event = row.entry().event
    except CodecError as error:
        return f"?? {error}"
    return " ".join(f"{name}={value!r}" for name, value in event)


def _as_json(row: Row) -> str:
    from bus.errors import CodecError

    envelope: dict[str, object] = {**row._asdict(), "derived": bool(row.derived)}
    del envelope["body"]
    try:
        return json.dumps(envelope | {"event": row.entry().event.model_dump()})
    except CodecError as error:
        return json.dumps(envelope | {"error": str(error)})


def _clip(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


@contextmanager
def _mistakes_explained() -> Iterator[None]:
    """What we raise on purpose is told in one line, without a traceback."""
    from bus.errors import SwingshiftError

    try:
        yield
    except SwingshiftError as error:
        typer.echo(f"swingshift replay: {error}", err=True)
        raise typer.Exit(MISTAKEN) from error
