"""`swingshift replay ledger`: the books of a recorded run for a terminal, or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bus.recording import Recording
from replay.bar import Bar
from replay.ledger import KINDS, Cycle, Ledger
from replay.lengths import Spread

MOST_FAULTS = 20
MOST_CYCLES = 20
"""Rows that are printed; of more cycles, the first and the last ones."""


def ledger_command(folder: Path, *, as_json: bool) -> bool:
    """Prints the ledger of the recording in `folder`; True: it balances. Raises SwingshiftError."""
    ledger = read_ledger(folder)
    if as_json:
        typer.echo(json.dumps(ledger.as_dict(), indent=1))
    else:
        _print(folder, ledger)
    return ledger.balanced


def read_ledger(folder: Path) -> Ledger:
    """The ledger of a recording. Raises ConfigError when there is none, CodecError, LogError."""
    ledger = Ledger()
    with Recording.open(folder) as recording, Bar() as bar:
        for row in bar.follow_to(recording.rows(kinds=KINDS), "reading", recording.last_position(), lambda row: row.position):
            ledger.apply(row.entry())
    return ledger


def _print(folder: Path, ledger: Ledger) -> None:
    console = Console()
    console.print(_totals(ledger))
    console.print(_cycles(ledger.cycles))
    faults = ledger.faults
    for fault in faults[:MOST_FAULTS]:
        typer.echo(str(fault))
    if len(faults) > MOST_FAULTS:
        typer.echo(f"… and {len(faults) - MOST_FAULTS} more; --json has all")
    if faults:
        samples = len({fault.sample for fault in faults if fault.sample is not None})
        typer.echo(f"FAILED: {folder}: {len(faults)} faults, of {samples} samples")
    else:
        typer.echo(f"balanced: {folder}: each of the {ledger.taken} prompts taken is accounted for once")


def _totals(ledger: Ledger) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    planned = ledger.plan.num_prompts if ledger.plan else None
    table.add_row("taken", str(ledger.taken), "" if planned is None else f"of {planned} in the plan")
    table.add_row("trained", str(ledger.trained), _tokens(ledger.lengths.of_trained))
    table.add_row("dropped", str(sum(ledger.dropped.values())))
    for reason, count in sorted(ledger.dropped.items()):
        table.add_row(f"  {reason}", str(count), _tokens(ledger.lengths.of_dropped.get(reason, Spread())))
    for state in ("ready", "in a batch", "in flight"):
        table.add_row(state, str(ledger.count(state)))
    if ledger.repeated:
        table.add_row("ready twice", str(ledger.repeated), "the second time is ignored by everybody")
    return table


def _tokens(spread: Spread) -> str:
    return f"{spread.mean:.1f} ± {spread.error:.1f} answer tokens a sample" if spread.samples else ""


def _cycles(cycles: list[Cycle]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("version", "taken", "ready", "trained", "dropped", "left: in flight", "ready", "in a batch"):
        table.add_column(name, justify="right")
    half = MOST_CYCLES // 2
    shown = cycles if len(cycles) <= MOST_CYCLES else [*cycles[:half], None, *cycles[-half:]]
    for cycle in shown:
        if cycle is None:
            table.add_row("…")
            continue
        counts = (cycle.taken, cycle.ready, cycle.trained, sum(cycle.dropped.values()), *cycle.left.values())
        table.add_row(str(cycle.version), *map(str, counts))
    return table
