"""The page itself: template, styles, scripts and data in one file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import ascii_uppercase

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bus.events import RunPlanned
from replay.report.charts import chart_data
from replay.report.numbers import Change, Number, change, comparison, key_numbers, seconds_text, verdict
from replay.report.policies import PoliciesPart, policies_part
from replay.report.tables import (
    BooksPart,
    DeviceRow,
    Difference,
    SwingRow,
    books_part,
    device_rows,
    note_rows,
    plan_differences,
    settings_of,
    swing_rows,
)
from replay.report.timeline import Note, Timeline
from services.monitor.classes import CLASSES

FOLDER = Path(__file__).parent
SCRIPTS = ("svg.js", "view.js", "timeline.js", "curves.js", "page.js")
MOST_RUNS = 6
"""As many as there are colours to tell them apart."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """What the template says of one run."""

    letter: str
    name: str
    plan: RunPlanned | None
    ended: str
    entries: int
    verdict: str
    numbers: list[Number]
    changes: list[Change]
    """Of each number, against the first run."""
    swings: list[SwingRow]
    swings_left_out: int
    policies: PoliciesPart
    devices: list[DeviceRow]
    books: BooksPart
    notes: list[tuple[str, Note]]
    notes_left_out: int
    settings: list[tuple[str, str]]


def render(timelines: Sequence[Timeline]) -> str:
    """The page about these runs."""
    letters = ascii_uppercase[: len(timelines)]
    numbers = [key_numbers(timeline.summary) for timeline in timelines]
    runs = [_part(letter, timeline, own, numbers[0]) for letter, timeline, own in zip(letters, timelines, numbers, strict=True)]
    charts = [chart_data(timeline) for timeline in timelines]
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        title=" / ".join(dict.fromkeys(run.name for run in runs)),
        runs=runs,
        number_groups=list(dict.fromkeys(number.group for number in numbers[0])),
        comparison=comparison(letters, [timeline.summary for timeline in timelines]),
        can_compare=len(runs) == 1 and bool(timelines[0].summary.swings.all and runs[0].plan and runs[0].plan.standalone),
        differences=_differences(timelines),
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        scripts=Markup("\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)),
        data=_embedded({"classes": CLASSES, "letters": letters, "runs": charts}),
        version=_version(),
    )


def _part(letter: str, timeline: Timeline, numbers: list[Number], first: list[Number]) -> RunPart:
    summary = timeline.summary
    plan = summary.books.plan
    swings, left_out = swing_rows(timeline)
    return RunPart(
        letter=letter,
        name="a log without a plan" if plan is None else plan.run,
        plan=plan,
        ended=_ended(timeline),
        entries=summary.entries,
        verdict=verdict(summary),
        numbers=numbers,
        changes=[change(of_first, own) for of_first, own in zip(first, numbers, strict=True)],
        swings=swings,
        swings_left_out=left_out,
        policies=policies_part(timeline),
        devices=device_rows(summary),
        books=books_part(timeline.ledger),
        notes=note_rows(timeline),
        notes_left_out=timeline.notes_left_out,
        settings=settings_of(plan),
    )


def _ended(timeline: Timeline) -> str:
    summary = timeline.summary
    plan, ended = summary.books.plan, summary.ended
    steps = f"{summary.books.steps_done} of {plan.total_steps} steps" if plan is not None else "no plan"
    if ended is None:
        return f"has not ended: {steps} after {seconds_text(summary.wall_s)}"
    detail = f" ({ended.detail.splitlines()[-1]})" if ended.detail.strip() else ""
    return f"{ended.reason}{detail}: {steps} in {seconds_text(summary.wall_s)}"


def _differences(timelines: Sequence[Timeline]) -> list[Difference]:
    return plan_differences([timeline.summary.books.plan for timeline in timelines])


def _embedded(data: object) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _version() -> str:
    try:
        return version("swingshift")
    except PackageNotFoundError:
        return "unknown version"
