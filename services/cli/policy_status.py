"""`swingshift policy status RUN`: who decides since when, who watches, what was refused, and how shadows compare."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.mistakes import mistakes_explained
from services.cli.policy_state import PolicyState, read_state
from services.cli.screen import TerminalScreen
from services.cli.source import cut_off, find, open_source
from services.cli.status import signs_of_life
from services.launcher.folders import FoundRun
from services.monitor.last_words import ended_words
from services.monitor.notes import asked_words
from services.monitor.policy_numbers import policy_numbers
from services.monitor.policy_tables import policies_table, shadow_tables
from services.policy.core import SOURCE

MOST_REFUSALS = 5


def policy_status_command(named: str, redis: str | None, runs: Path, *, as_json: bool) -> None:
    """Prints what the log says of the run's policies."""
    with mistakes_explained():
        found, screen = find(named, runs, redis), TerminalScreen()
        try:
            with open_source(found) as source:
                state = read_state(found, source, screen.working)
        finally:
            screen.end()
        alive = signs_of_life(found, [SOURCE, *state.history.shadows])
        numbers = policy_numbers(state.history, state.shadows)
    if as_json:
        pending = [{"position": position, "words": asked_words(event)} for position, event in state.roster.open.items()]
        is_alive = None if alive is None else {source: alive.get(source) for source in (SOURCE, *state.history.shadows)}
        whole = {"run": found.run, "position": state.position, **numbers, "policy_requests_pending": pending, "alive": is_alive}
        typer.echo(json.dumps(whole, indent=1, allow_nan=False))
        return
    console = Console()
    console.print(_facts(found, state, alive))
    console.print(policies_table(numbers))
    for table in shadow_tables(numbers):
        console.print(table)


def _facts(found: FoundRun, state: PolicyState, alive: dict[str, int] | None) -> Table:
    history = state.history
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    how = ended_words(state.ended) if state.ended is not None else cut_off(found) if alive is None else "(running)"
    table.add_row("run", f"{found.run} {how}, {state.position} entries, boundary {state.shadows.next_boundary} is the next")
    active = history.active
    if active is None:
        table.add_row("decides", "nobody yet")
    else:
        life = _life(alive, SOURCE, active.epoch) if state.ended is None else ""
        table.add_row("decides", f"{active.chosen}, since entry {active.position}, boundary {active.boundary}{life}")
    for shadow in history.shadows.values():
        life = _life(alive, shadow.source, shadow.epoch) if state.ended is None else ""
        table.add_row("watches", f"{shadow.label}: {shadow.chosen}, since entry {shadow.position}, boundary {shadow.boundary}{life}")
    for policy in (active, *history.shadows.values()):
        if policy is not None and policy.losses.count:
            table.add_row("lost", Text(f"{policy.chosen}: {policy.losses}", "red"))
    for position, event in state.roster.open.items():
        table.add_row("pending", f"entry {position}: {asked_words(event)}")
    for refusal in list(history.refusals)[-MOST_REFUSALS:]:
        table.add_row("refused", Text(f"entry {refusal.request}: {refusal}", "red"))
    return table


def _life(alive: dict[str, int] | None, source: str, epoch: int) -> str:
    if alive is None:
        return ""
    return ", alive" if alive.get(source) == epoch else ", shows no sign of life"
