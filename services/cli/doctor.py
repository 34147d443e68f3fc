"""`swingshift doctor [RUN]`: is this machine fit for a run; and who waits for what in a run, since when, and what would end it.

Exit status 0: nothing is wrong; 1: problems were found, and are listed at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bus.entry import Entry
from bus.errors import ConfigError
from services.cli.checkup import Finding, check_log_server, check_machine, check_url, check_vllm, vllm_of, weights_of
from services.cli.mistakes import FAILED, mistakes_explained
from services.cli.source import cut_off, find, had_its_own_server, open_source
from services.cli.status import on_several, signs_of_life
from services.config import RunConfig
from services.launcher.folders import FoundRun
from services.monitor.elapsed import clock_text
from services.monitor.findings import GONE, problems_of
from services.monitor.last_words import ended_words
from services.monitor.reading import read_all
from services.monitor.situation import Situation, situation_of
from services.monitor.waits import Due, Wait, deadlines, waits
from services.planned import config_of

MOST_DEADLINES = 8
NARROW = 100
"""Columns of a terminal, below which a wait takes two lines."""


def doctor_command(named: str | None, redis: str | None, runs: Path) -> None:
    """Prints what was found; exit status 1 when something is wrong."""
    console = Console()
    with mistakes_explained():
        problems = _examine_machine(console, redis) if named is None else _examine_run(console, find(named, runs, redis))
    if not problems:
        console.print(Text("nothing is wrong", "green"))
        return
    console.print(Text(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}", "bold red"))
    for problem in problems:
        console.print(Text(f"- {problem}"))
    raise typer.Exit(FAILED)


def _examine_machine(console: Console, redis: str | None) -> list[str]:
    with console.status("asking vLLM, if there is one"):
        findings = [*check_log_server(redis, os.environ), *check_machine(), *check_vllm()]
    console.print(_findings(findings))
    return [f"{finding.name}: {finding.problem}" for finding in findings if finding.problem]


def _examine_run(console: Console, found: FoundRun) -> list[str]:
    with open_source(found) as source, console.status("reading the log"):
        situation = situation_of(list(read_all(source, source.last_position())))
    alive = None if situation.ended is not None else signs_of_life(found, list(situation.services))
    gone = f"the run {cut_off(found)}" if had_its_own_server(found) else GONE
    server = check_url(found.url, "the run's server") if found.url is not None and alive is not None else []
    config = _config(situation)
    engine = "" if config is None else config.rollout.engine
    vllm = vllm_of(engine, needed=situation.ended is None and alive is None and had_its_own_server(found))
    weights = [] if config is None or situation.plan is None else weights_of(config, situation.plan.devices)
    now = time.time_ns()
    tables = [_findings([*_head(found, situation, alive, now), *server, *vllm, *weights]), _services(situation, alive, now)]
    if situation.ended is None:
        tables += [_waits(waits(situation), now, console.width), _deadlines(deadlines(situation), now)]
    for table in tables:
        console.print(table)
        console.print()
    own_problems = [f"{finding.name}: {finding.problem}" for finding in (*server, *vllm) if finding.problem]
    return [*own_problems, *problems_of(situation, alive, now, gone)]


def _config(found: Situation) -> RunConfig | None:
    """That of the run; None if another version of swingshift wrote it in a way that this one does not understand."""
    try:
        return None if found.plan is None else config_of(found.plan)
    except ConfigError:
        return None


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.name, Text(finding.found, "red" if finding.problem else ""))
    return table


def _head(place: FoundRun, found: Situation, alive: dict[str, int] | None, now: int) -> list[Finding]:
    plan, books, last = found.plan, found.trainer.books, found.last
    return [
        Finding("run", f"{place.run}: {_state(found, alive)}"),
        Finding("steps", "" if plan is None else f"{books.steps_done} of {plan.total_steps}, version {max(0, books.version)}"),
        Finding("samples", f"{len(books.ready)} ready, {len(books.in_flight)} in flight, {books.trained} trained"),
        Finding("last entry", f"{last.position}: {last.event.kind} of {last.source}, {_age(last, now)} ago"),
    ]


def _state(found: Situation, alive: dict[str, int] | None) -> str:
    if found.ended is not None:
        return ended_words(found.ended)
    if alive is None:
        return "was cut off"
    if "BoundaryOpened" not in found.newest:
        return "starting"
    return "stopping" if found.trainer.books.stop_requested else "running"


def _services(found: Situation, alive: dict[str, int] | None, now: int) -> Table:
    heads = ("service", "epoch", "is", "for", "sign of life", *(("on",) if on_several(found.hosts) else ()))
    table = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for source, state in sorted(found.services.items()):
        sign = "?" if alive is None else "yes" if alive.get(source) == state.epoch else "no"
        shown = sign if state.is_here and found.ended is None else ""
        style = "red" if shown == "no" or state.state == "lost" else ""
        where = (found.hosts.get(source, "?"),) if on_several(found.hosts) else ()
        table.add_row(Text(source, style), str(state.epoch), state.state, _age(state.entry, now), Text(shown, style), *where)
    return table


def _waits(found: Sequence[Wait], now: int, width: int) -> Table:
    """On a narrow terminal what ends a wait has a line of its own."""
    narrow = width < NARROW
    heads = ("who", "for", "waits for (or is busy with)") if narrow else ("who", "for", "waits for (or is busy with)", "ends with")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for wait in found:
        what = Text(wait.what, "" if wait.busy else "yellow")
        age = "?" if wait.since is None else _age(wait.since, now)
        if narrow:
            table.add_row(wait.who, age, what.append(f"\n→ {wait.ends_with}", "dim"))
        else:
            table.add_row(wait.who, age, what, Text(wait.ends_with))
    if not found:
        table.add_row("nobody", "", "nothing")
    return table


def _deadlines(found: Sequence[Due], now: int) -> Table:
    table = Table("deadline", "due in", "then", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for due in found[:MOST_DEADLINES]:
        left = due.since.at / 1e9 + due.seconds - now / 1e9
        table.add_row(due.key, f"{left:.0f} s" if left >= 0 else f"{-left:.0f} s ago", due.then)
    if len(found) > MOST_DEADLINES:
        table.add_row(f"{len(found) - MOST_DEADLINES} more", "", "")
    return table


def _age(entry: Entry, now: int) -> str:
    seconds = max(0.0, (now - entry.at) / 1e9)
    return f"{seconds:.1f} s" if seconds < 60 else clock_text(seconds)
