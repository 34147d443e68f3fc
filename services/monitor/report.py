"""A summary as tables for people: what `swingshift run` ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.monitor.policy_tables import policies_table, shadow_tables, was_changed

MOST_SWINGS = 12
"""Swings that are listed; of more, the first and the last ones."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found, in one line."""

    passed: bool
    words: str


def print_summary(summary: Mapping[str, object], verified: Verified | None = None, console: Console | None = None) -> None:
    """Prints what `services.monitor.summary.summarise` returned."""
    console = console or Console()
    console.print(_numbers(summary, verified))
    swings = cast("Sequence[Mapping[str, object]]", summary["swings"])
    if swings:
        console.print(_swings(swings))
    if was_changed(summary):
        console.print(policies_table(summary))
    for table in shadow_tables(summary):
        console.print(table)


def _numbers(summary: Mapping[str, object], verified: Verified | None) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    detail = f": {summary['ended_detail']}" if summary["ended_detail"] else ""
    table.add_row("run", f"{summary['run']}, ended: {summary['ended'] or 'no'}{detail}")
    table.add_row("time", f"{_seconds(summary['wall_seconds'])}, after {_seconds(summary['startup_seconds'])} of start-up")
    table.add_row("steps", f"{summary['steps']}, weights published up to version {summary['version']}")
    table.add_row("reward", _reward(summary))
    evaluations = cast("Sequence[Mapping[str, object]]", summary["evaluations"])
    if evaluations:
        table.add_row("evaluation", _evaluations(evaluations))
    table.add_row("samples", f"{summary['samples_trained']} trained, {_dropped(summary)}; {_staleness(summary)}")
    table.add_row("logprob", _agreement(summary))
    table.add_row("weights", syncs_text(cast("Mapping[str, object]", summary["weight_syncs"])))
    table.add_row("tokens", _tokens(summary))
    table.add_row("waits", f"{_seconds(summary['wait_seconds'])} in all, {_seconds(summary['wait_seconds_per_step'])} a step")
    table.add_row("swings", _swing_totals(summary))
    table.add_row("busy", _utilisation(summary))
    for device in cast("Sequence[Mapping[str, object]]", summary["devices"]):
        table.add_row(cast("Sequence[str]", device["holders"])[0], _device(device))
    if verified is not None:
        table.add_row("verify", Text(verified.words, "green" if verified.passed else "bold red"))
    return table


def _agreement(summary: Mapping[str, object]) -> str | Text:
    """Of replicas and trainer on the log-probabilities of the same tokens by the same weights."""
    mean, limit = summary["logprob_diff_same_version"], summary["max_logprob_diff"]
    if not isinstance(mean, float):
        return "not measured"
    found = cast("Sequence[Mapping[str, object]]", summary["disagreements"])
    apart = f"{mean:.2g}" if mean else "less than 0.000001"  # a summary has six digits
    words = f"replicas and trainer {apart} apart on average, with the same weights ({summary['logprob_diff_measured_steps']} steps)"
    if not found:
        return words
    return Text(f"{words}; over {limit:g} with {len(found)} versions, first in step {found[0]['step']}", "yellow")


def syncs_text(syncs: Mapping[str, object]) -> str:
    """How weights came to the replicas."""
    ways = cast("Mapping[str, Mapping[str, int]]", syncs["by_transport"])
    if not ways:
        return "how replicas got them is not known"
    told = ", ".join(f"{way['count']} by {name}" for name, way in ways.items())
    fetched, full = cast("int", syncs["num_bytes"]), cast("int", syncs["full_bytes"])
    ratio = f", {_percent(fetched / full)} of {_bytes(full)} in all" if full else ""
    return f"{told}: {_bytes(fetched)} read{ratio}"


def _evaluations(evaluations: Sequence[Mapping[str, object]]) -> str:
    """The first and the last one that have a score."""
    scored = [evaluation for evaluation in evaluations if "eval/mean_reward" in evaluation]
    partial = sum(bool(evaluation["partial"]) for evaluation in evaluations)
    ends = scored if len(scored) < 2 else [scored[0], scored[-1]]
    told = ", ".join(f"{evaluation['eval/mean_reward']:.3f} (version {evaluation['version']})" for evaluation in ends)
    return f"{told or 'no score'}; {len(evaluations)} versions, {partial} of them in part"


def _tokens(summary: Mapping[str, object]) -> str:
    return (
        f"{summary['tokens_generated']:,} generated, {_plain(summary['tokens_per_second'])} a second, "
        f"{_plain(summary['tokens_per_device_second'])} of each device"
    )


def _reward(summary: Mapping[str, object]) -> str:
    first, last = summary["reward_first_quarter"], summary["reward_last_quarter"]
    if not isinstance(first, float) or not isinstance(last, float):
        return "no step was done"
    return f"{first:.3f} in the first quarter of the steps, {last:.3f} in the last: {last - first:+.3f}"


def _dropped(summary: Mapping[str, object]) -> str:
    reasons = cast("Mapping[str, int]", summary["samples_dropped_by_reason"])
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{summary['samples_dropped']} dropped" + (f" ({listed})" if listed else "")


def _staleness(summary: Mapping[str, object]) -> str:
    staleness = cast("Mapping[str, float] | None", summary["staleness"])
    if staleness is None:
        return "staleness unknown"
    return f"staleness {staleness['min']:g} to {staleness['max']:g}, {staleness['mean']:.2f} on average"


def _swing_totals(summary: Mapping[str, object]) -> str:
    if not summary["swings"]:
        return "none"
    return (
        f"{summary['swing_count']} cost {_seconds(summary['swing_seconds'])} ({_percent(summary['swing_share'])} of the time); "
        f"devices lent for {_seconds(summary['lent_seconds'])} ({_percent(summary['lent_share'])}), which gave "
        f"{summary['lent_tokens']:,} tokens{_gain(summary['lent_gain_seconds'])}"
    )


def _gain(seconds: object) -> str:
    return f", for which the others would have needed {_seconds(seconds)}" if isinstance(seconds, float) else ""


def _utilisation(summary: Mapping[str, object]) -> str:
    return (
        f"{_percent(summary['resource_utilization'])} of all devices: training {_percent(summary['train_resource_utilization'])} of the "
        f"time at home, generating {_percent(summary['rollout_resource_utilization'])} of the open slots"
    )


def _device(device: Mapping[str, object]) -> str:
    first, *others = cast("Sequence[str]", device["holders"])
    known = "" if device["name"] == first else f"device {device['name']}"
    shared = f"shared with {', '.join(others)}" if others else ""
    where = ", ".join(part for part in (known, shared) if part)
    return _classes(cast("Mapping[str, float]", device["seconds"])) + (f" ({where})" if where else "")


def _classes(seconds: Mapping[str, float]) -> str:
    """Shares of a device's time, the largest first."""
    total = fsum(seconds.values())
    if total <= 0:
        return "-"
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_percent(spent / total)}" for name, spent in ordered if spent / total >= 0.0005)


def _swings(swings: Sequence[Mapping[str, object]]) -> Table:
    """One line a swing, 80 columns wide."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title="swings", title_justify="left", title_style="bold")
    for name in ("", "step", "to", "because", "seconds", "of which", "tokens", "gain"):
        table.add_column(name, justify="right" if name in ("", "step", "seconds", "tokens", "gain") else "left")
    half = MOST_SWINGS // 2
    for swing in swings[: half if len(swings) > MOST_SWINGS else None]:
        table.add_row(*_swing(swing))
    if len(swings) > MOST_SWINGS:
        table.add_row("…", "", "", f"{len(swings) - 2 * half} more")
        for swing in swings[-half:]:
            table.add_row(*_swing(swing))
    return table


def _swing(swing: Mapping[str, object]) -> tuple[str, ...]:
    phases = cast("Mapping[str, float]", swing["phases"])
    lends = swing["target"] == "rollout"
    ended = "" if swing["outcome"] == "done" else f", {swing['outcome'] or 'not ended'}"
    return (
        str(swing["swing"]),
        str(swing["step"]),
        "lend" if lends else "back",
        f"{swing['reason']}{ended}",
        _seconds(swing["seconds"]).removesuffix(" s"),
        " ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items()),
        f"{swing['lent_tokens']:,}" if lends else "",
        _seconds(swing["gain_seconds"]) if lends and swing["gain_seconds"] is not None else "",
    )


def _seconds(value: object) -> str:
    return f"{value:.2f} s" if isinstance(value, int | float) else "unknown"


def _percent(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "unknown"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB" if number >= 1e5 else f"{number:,} B"


def _plain(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else "unknown"
