"""`swingshift set RUN [NAME=VALUE …]`: changes settings of a live run, or lists those that can change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from bus.entry import Draft
from bus.errors import ConfigError
from services.cli.mistakes import mistakes_explained
from services.cli.source import Source, find, open_log, open_source
from services.config import RunConfig
from services.launcher.folders import FoundRun
from services.live_settings import LIVE
from services.monitor.last_words import ended_words
from services.setting_changes import KINDS, OPERATOR, Change, SettingsNow, shown, value_of

READ_LIMIT = 4096


def set_command(named: str, assignments: Sequence[str], redis: str | None, runs: Path) -> None:
    """Appends the changes in one call, or, without any, prints the table."""
    with mistakes_explained():
        found = find(named, runs, redis)
        with open_source(found) as source:
            now = settings_now(source)
        config = now.config(found.folder)
        for line in changed(found, now, config, assignments) if assignments else listing(now, config):
            typer.echo(line)


def settings_now(source: Source) -> SettingsNow:
    """From all entries that are there now."""
    now, last = SettingsNow(), source.last_position()
    while now.position < last:
        rows = source.read_rows(now.position, READ_LIMIT)
        if not rows:
            break
        for row in rows:
            if row.kind in KINDS:
                now.apply(row.entry())
        now.position = rows[-1].position
    return now


def changed(found: FoundRun, now: SettingsNow, config: RunConfig, assignments: Sequence[str]) -> list[str]:
    """Changes the settings; a line for each. Raises ConfigError, LogMissing, ServerError."""
    changes = now.changes(assignments, config)
    if now.ended is not None:
        raise ConfigError(f"run {found.run} {ended_words(now.ended)}: nobody would honour a change")
    positions = change_live(found, now, changes)
    lines = []
    for change, position in zip(changes, positions, strict=True):
        live = LIVE[change.key]
        what = f"{change.key}: {shown(change.before)} -> {shown(change.value)} from entry {position} on"
        lines.append(f"{what} ({live.honoured_by}: {live.takes_effect})")
    return lines or ["nothing changes: all of it is so already"]


def change_live(found: FoundRun, now: SettingsNow, changes: Sequence[Change]) -> list[int]:
    """Appends the changes in one call and sees that they count; returns their positions. Raises ConfigError, LogMissing, ServerError."""
    if not changes:
        return []
    with open_log(found) as log:
        first = log.append(OPERATOR, [Draft(change.event(), derived=False, cause=0, at=time.time_ns()) for change in changes])
        positions = list(range(first, first + len(changes)))
        while now.position < positions[-1]:
            for entry in log.read(now.position, READ_LIMIT):
                now.apply(entry)
    _check_counted(found, now, changes, positions)
    return positions


def _check_counted(found: FoundRun, now: SettingsNow, changes: Sequence[Change], positions: Sequence[int]) -> None:
    for change, position in zip(changes, positions, strict=True):
        if now.changed_at.get(LIVE[change.key].name) != position:
            raise ConfigError(
                f"entry {position} ({change.key}) changed nothing: somebody else changed a setting that it does not fit with any more; "
                f"see `swingshift set {found.run}`"
            )


def listing(now: SettingsNow, config: RunConfig) -> list[str]:
    """A line for each setting that can change: its value, where that is from, and when a change takes effect."""
    rows = [("setting", "now", "since", "a change takes effect")]
    for live in LIVE.values():
        at = now.changed_at.get(live.name)
        rows.append((live.key, shown(value_of(config, live.key)), "plan" if at is None else f"entry {at}", live.takes_effect))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(3)]
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + row[3] for row in rows]
    return [*lines, "All other settings are fixed while a run lives; naming one with a value says why."]
