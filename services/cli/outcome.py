"""The summary of a run for people; summary.json has all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from rich.table import Table

Show = Callable[[object], str]


def summary_table(summary: Mapping[str, object]) -> Table:
    """The numbers that matter, one a line; those that the run did not come to are left out."""
    table = Table(box=None, show_header=False, title="summary", title_justify="left")
    for label, name, show in LINES:
        if summary.get(name) is not None:
            table.add_row(label, show(summary[name]))
    for target, label in (("rollout", "each lend took"), ("train", "each return took")):
        seconds = _swing_seconds(summary.get("swings"), target)
        if seconds:
            table.add_row(label, f"{fmean(seconds):.3f} s on average, {max(seconds):.3f} s at most, {len(seconds)} times")
    return table


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _seconds(value: object) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else str(value)


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else str(value)


def _counts(value: object) -> str:
    return ", ".join(f"{name} {count}" for name, count in value.items()) or "none" if isinstance(value, Mapping) else str(value)


def _parts(value: object) -> str:
    return ", ".join(f"{name} {_seconds(part)}" for name, part in value.items()) if isinstance(value, Mapping) else str(value)


def _swing_seconds(swings: object, target: str) -> list[float]:
    """Seconds of the swings that came to their end."""
    if not isinstance(swings, list):
        return []
    done = [swing for swing in swings if isinstance(swing, Mapping) and swing.get("target") == target and swing.get("outcome") == "done"]
    return [float(swing["seconds"]) for swing in done if isinstance(swing.get("seconds"), int | float)]


LINES: tuple[tuple[str, str, Show], ...] = (
    ("reward, first quarter", "reward_first_quarter", _plain),
    ("reward, last quarter", "reward_last_quarter", _plain),
    ("wall-clock", "wall_seconds", _seconds),
    ("start-up before it", "startup_seconds", _seconds),
    ("steps", "steps", _plain),
    ("samples trained", "samples_trained", _plain),
    ("samples dropped", "samples_dropped_by_reason", _counts),
    ("trainer waited", "wait_seconds", _seconds),
    ("trainer's device", "trainer_seconds", _parts),
    ("share of swings", "swing_share", _percent),
    ("share of lending", "lent_share", _percent),
    ("utilisation, all devices", "resource_utilization", _percent),
    ("utilisation, training", "train_resource_utilization", _percent),
    ("utilisation, rollout", "rollout_resource_utilization", _percent),
    ("tokens a second", "tokens_per_second", _plain),
    ("services lost", "services_lost", _plain),
)
"""Label, name in the summary, how it is shown."""
