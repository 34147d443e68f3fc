"""The page's tables as rows of words: swings, devices, books, notes, and how the plans of several runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from bus.events import RunPlanned
from replay.ledger import Ledger, State
from replay.lengths import Spread
from replay.report.numbers import number_text, seconds_text
from replay.report.timeline import Note, Timeline
from services.monitor.classes import CLASSES, Class
from services.monitor.summary import Summary
from services.monitor.swings import SwingCost

MOST_SWINGS = 500
"""Rows of a table; of more swings, the first and the last ones. All are drawn."""
MOST_FAULTS = 20
HIDDEN = ("folder", "monitor.", "redis.", "model.path")
"""Settings that make no difference to what a run does, or that every run has its own of."""
OWN = {"run", "environment", "config", "devices"}


@dataclass(frozen=True, slots=True)
class SwingRow:
    """One swing in words. `began`, `ended`: seconds since boundary 0 was opened."""

    swing: int
    began: float
    ended: float
    step: int
    ready: int
    what: str
    reason: str
    outcome: str
    seconds: str
    phases: tuple[tuple[str, str], ...]
    lent: str
    tokens: str
    cost: str
    gain: str
    net: str
    pays: bool | None
    """None: it cannot be said."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Where a device's time went."""

    name: str
    count: int
    holders: str
    held: str
    shares: tuple[tuple[Class, float, str], ...]
    """Class, share, in words; largest first."""


@dataclass(frozen=True, slots=True)
class BooksRow:
    """One line of the books: where samples ended, how many, and how long their answers were."""

    label: str
    count: int
    tokens: str = ""


@dataclass(frozen=True, slots=True)
class BooksPart:
    """The ledger in words."""

    taken: int
    rows: tuple[BooksRow, ...]
    faults: tuple[str, ...]
    faults_left_out: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting in which runs differ: its value in each of them."""

    name: str
    values: tuple[str, ...]


def swing_rows(timeline: Timeline) -> tuple[list[SwingRow], int]:
    """The rows, and how many swings are left out in the middle."""
    swings, rate = timeline.summary.swings.all, timeline.summary.standalone_tokens_per_s
    half = MOST_SWINGS // 2
    shown = swings if len(swings) <= MOST_SWINGS else [*swings[:half], *swings[-half:]]
    return [_swing_row(swing, timeline, rate) for swing in shown], len(swings) - len(shown)


def _swing_row(swing: SwingCost, timeline: Timeline, rate: float | None) -> SwingRow:
    began, ended = timeline.swing_times.get(swing.swing, (timeline.opened, None))
    lends = swing.target == "rollout"
    cost = swing.cost_seconds if lends else None
    gain = swing.gain_seconds(rate) if lends else None
    net = None if cost is None or gain is None else gain - cost
    return SwingRow(
        swing=swing.swing,
        began=(began - timeline.opened) / 1e9,
        ended=((timeline.end if ended is None else ended) - timeline.opened) / 1e9,
        step=swing.step,
        ready=swing.ready_at_start,
        what="lend" if lends else "back",
        reason=swing.reason,
        outcome=swing.outcome or "not ended",
        seconds=_seconds(swing.seconds),
        phases=tuple((name, f"{seconds:.3f}") for name, seconds in swing.phases.items()),
        lent=_seconds(swing.lent_seconds) if lends else "",
        tokens=f"{swing.lent_tokens:,}" if lends else "",
        cost=_seconds(cost) if lends else "",
        gain=_seconds(gain) if lends else "",
        net=_signed(net) if lends else "",
        pays=None if net is None else net > 0,
    )


def device_rows(summary: Summary) -> list[DeviceRow]:
    """Every device, or devices with the same holders."""
    rows = []
    for group in summary.devices.groups:
        seconds = summary.devices.seconds(group)
        held = fsum(seconds.values())
        ordered = sorted(seconds, key=lambda name: (-seconds[name], CLASSES.index(name))) if held > 0 else []
        shares = tuple((name, seconds[name] / held, f"{name} {number_text(seconds[name] / held, '%', 1)}") for name in ordered)
        rows.append(DeviceRow(group.name, group.count, ", ".join(group.holders), seconds_text(held), shares))
    return rows


def books_part(ledger: Ledger) -> BooksPart:
    """The books as they stand at the end."""
    lengths = ledger.lengths
    dropped = [
        BooksRow(f"dropped: {reason}", count, _tokens(lengths.of_dropped.get(reason))) for reason, count in sorted(ledger.dropped.items())
    ]
    states: tuple[State, ...] = ("ready", "in a batch", "in flight")
    left = [BooksRow(f"{state} at the end", ledger.count(state)) for state in states]
    faults = ledger.faults
    return BooksPart(
        taken=ledger.taken,
        rows=(BooksRow("trained", ledger.trained, _tokens(lengths.of_trained)), *dropped, *left),
        faults=tuple(str(fault) for fault in faults[:MOST_FAULTS]),
        faults_left_out=max(0, len(faults) - MOST_FAULTS),
    )


def _tokens(spread: Spread | None) -> str:
    return f"{spread.mean:.1f} ± {spread.error:.1f}" if spread is not None and spread.samples else ""


def note_rows(timeline: Timeline) -> list[tuple[str, Note]]:
    """When each was, and the note."""
    return [
        (seconds_text((note.time - timeline.opened) / 1e9) if note.time >= timeline.opened else "start-up", note) for note in timeline.notes
    ]


def plan_differences(plans: Sequence[RunPlanned | None]) -> list[Difference]:
    """Settings that are not the same in all runs, and what bits depend on."""
    settings = [{} if plan is None else _settings(plan) for plan in plans]
    names = dict.fromkeys(name for each in settings for name in each)
    found = [Difference(name, tuple(each.get(name, "–") for each in settings)) for name in names if not name.startswith(HIDDEN)]
    return [difference for difference in found if len(dict.fromkeys(difference.values)) > 1]


def settings_of(plan: RunPlanned | None) -> list[tuple[str, str]]:
    """All settings of a run, by name."""
    return [] if plan is None else sorted(_settings(plan).items())


def _settings(plan: RunPlanned) -> dict[str, str]:
    """The configuration where the plan has it, else the plan itself; then the environment."""
    flat: dict[str, str] = {}
    _flatten("", json.loads(plan.config) if plan.config else plan.model_dump(mode="json", exclude=OWN), flat)
    _flatten("environment.", plan.environment, flat)
    return flat | {"seed": str(plan.seed)}


def _flatten(prefix: str, value: object, flat: dict[str, str]) -> None:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            _flatten(f"{prefix}{name}.", inner, flat)
    else:
        flat[prefix.removesuffix(".")] = value if isinstance(value, str) else json.dumps(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds_text(value, 3 if abs(value) < 1 else 2)


def _signed(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{'+' if value >= 0 else '−'}{seconds_text(abs(value))}"
