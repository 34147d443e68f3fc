"""`swingshift replay`: look at a recorded run, and check it.

    verify DIR      every link of the chain, every decision, every invariant; exit status 1 when something is not as it should be
    show DIR        the entries, one a line
    diff A B        where two runs part, and how; exit status 1 when they do
    state DIR       what each service knew at one moment, and stepping through the log from there
    train DIR       every step trained again from the recorded samples; exit status 1 when a version has other weights than published
    ledger DIR      where every prompt that was taken has ended; exit status 1 when the books do not balance
    report DIR …    one HTML page: what every device did when, whether lending paid, how training went; several runs side by side
    trace DIR       a trace for ui.perfetto.dev: who did what when, with flows from cause to effect

Imports what it needs when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

MISTAKEN = 2
"""Exit status when the command cannot be followed."""

app = typer.Typer(help="Recorded runs: check them, look at them.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, such as runs/RUN.")]


@app.command()
def verify(folder: Folder, limit: Annotated[int, typer.Option(min=0, help="Most differences to print of each sort; 0: all.")] = 20) -> None:
    """Recompute every decision of a recorded run, and every link of its chain. Exit status 1 when there is a difference."""
    from replay.bar import Bar
    from replay.recorded import verify_recording
    from replay.subjects import subjects
    from replay.verify_report import lines

    with _mistakes_explained():
        began = time.monotonic()
        with Bar() as bar:
            report = verify_recording(folder, subjects, bar.follow_to)
        for line in lines(folder, report, time.monotonic() - began, limit or sys.maxsize):
            typer.echo(line)
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def show(
    folder: Folder,
    kind: Annotated[list[str], typer.Option(help="Only entries of this kind; may be given several times.")] = [],  # noqa: B006
    source: Annotated[list[str], typer.Option(help="Only entries of this source; may be given several times.")] = [],  # noqa: B006
    first: Annotated[int, typer.Option("--from", min=1, help="First position.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last position.")] = None,
    sample: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only what this sample went through.")] = None,
    request: Annotated[str | None, typer.Option(metavar="N.ANSWER", help="Only this request, all attempts at it.")] = None,
    swing: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only this swing.")] = None,
    replica: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this replica said or was asked.")] = None,
    step: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only this training step.")] = None,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only lines that match.")] = None,
    why: Annotated[int | None, typer.Option(min=1, metavar="POSITION", help="Only this entry, and what led to it, back to a fact.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing shortened.")] = False,
) -> None:
    """List the entries of a recorded run: position, time, source/epoch, cause, kind and fields; decisions have a `*`."""
    from replay.show import Filter, Span, show_command, why_command

    with _mistakes_explained():
        if why is not None:
            why_command(folder, why, as_json=as_json)
        else:
            wish = Filter(sample=sample, request=request, swing=swing, replica=replica, step=step, grep=grep)
            show_command(folder, Span(first, last, kind, source), wish, as_json=as_json)


@app.command()
def state(
    folder: Folder,
    step: Annotated[int | None, typer.Option(min=1, metavar="N", help="Right after this training step.")] = None,
    at: Annotated[int | None, typer.Option(min=1, metavar="POSITION", help="At this entry; unset: the last one.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Go on from there to an entry such as 'SwitchRequested target=train'.")
    ] = None,
    service: Annotated[str | None, typer.Option(metavar="S", help="Only trainer, rollouter, controller or policy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as one JSON object.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Step through the log from there, forth and back.")] = False,
) -> None:
    """The state of every service at one moment: after a step, at a position, or where something happens next."""
    from replay.state_command import Place, state_command

    with _mistakes_explained():
        state_command(folder, Place(step, at, until), service, as_json=as_json, interactive=interactive)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of another run of the same plan.")],
    context: Annotated[int, typer.Option("--context", "-C", min=0, metavar="N", help="Entries to show around the difference.")] = 3,
    strict: Annotated[bool, typer.Option("--strict", help="Times, processes, hosts, places and digests of code count, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The difference as one JSON object.")] = False,
) -> None:
    """The first difference of two recorded runs, and of what kind it is. Exit status 1 when there is one."""
    from replay.diff_command import diff_command

    with _mistakes_explained():
        equal = diff_command(a, b, context, strict=strict, as_json=as_json)
    raise typer.Exit(0 if equal else 1)


@app.command()
def train(
    folder: Folder,
    first: Annotated[int | None, typer.Option("--from-version", min=0, help="Begin with this version, not with version 0.")] = None,
    last: Annotated[int | None, typer.Option("--to-version", min=0, help="End with this version, not with the last one.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="Another setting of the learner, such as actor.lr=1e-5: curves are compared, not digests.")
    ] = [],  # noqa: B006
    to: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Write metrics.json and the weights there.")] = None,
) -> None:
    """Train again from the recorded samples, without engine and server. Exit status 1 when a version has other weights than published."""
    from replay.train_command import train_command

    with _mistakes_explained():
        passed = train_command(folder, first, last, settings, to)
    raise typer.Exit(0 if passed else 1)


@app.command()
def ledger(folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="Everything, as one JSON object.")] = False) -> None:
    """Where every prompt that was taken has ended. Exit status 1 when the books do not balance."""
    from replay.ledger_command import ledger_command

    with _mistakes_explained():
        balanced = ledger_command(folder, as_json=as_json)
    raise typer.Exit(0 if balanced else 1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs; of several, each is compared with the first.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the page.")] = Path("report.html"),
) -> None:
    """Write one HTML page that opens offline: what every device did when, whether lending paid, how training went."""
    from replay.report.command import report_command

    with _mistakes_explained():
        report_command(folders, output)


@app.command()
def trace(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the trace.")] = Path("run.pftrace"),
) -> None:
    """Write a trace for ui.perfetto.dev: requests, steps, swings, devices and counters, with flows from cause to effect."""
    from replay.trace.command import trace_command

    with _mistakes_explained():
        trace_command(folder, output)


@contextmanager
def _mistakes_explained() -> Iterator[None]:
    """What we raise on purpose is told in one line, without a traceback."""
    from bus.errors import SwingshiftError

    try:
        yield
    except SwingshiftError as error:
        typer.echo(f"swingshift replay: {error}", err=True)
        raise typer.Exit(MISTAKEN) from error
