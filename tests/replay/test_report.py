"""The report page: it says what the summary says, stays small, and opens in a browser."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import cast

import pytest
from typer.testing import CliRunner

from bus.entry import Entry
from bus.events import RunEnded, RunPlanned, SampleReady, StepDone
from replay.cli import app
from replay.report.charts import chart_data
from replay.report.numbers import Number, change, comparison, seconds_text, verdict
from replay.report.page import render
from replay.report.thinning import Interval, thin_changes, thin_curve, thin_intervals
from replay.report.timeline import Timeline
from services.monitor.classes import CLASSES, Class
from tests.cases.runs import run_plan, small_plan
from tests.replay.browser import open_page
from tests.replay.recordings import save, simulated, simulated_with


@cache
def lending_run() -> tuple[Entry, ...]:
    """A short run with lends; the scripted learner tells no metrics, so some are put in."""
    return tuple(_with_metrics(entry) for entry in run_plan(small_plan(total_steps=12)))


@cache
def run_without_lends() -> tuple[Entry, ...]:
    plan = small_plan(run="home", total_steps=12, use_dynamic_resource_scheduling=False)
    return tuple(_with_metrics(entry) for entry in run_plan(plan))


def _with_metrics(entry: Entry) -> Entry:
    if not isinstance(entry.event, StepDone):
        return entry
    step = entry.event.step
    metrics = {"actor/loss": 1.0 / step, "rollout/mean_reward": 0.1 * step, "actor/entropy": 0.5}
    return entry._replace(event=entry.event.model_copy(update={"metrics": metrics}))


def timeline_of(entries: Iterable[Entry]) -> Timeline:
    timeline = Timeline()
    for entry in entries:
        timeline.apply(entry)
    return timeline


def seconds_by_class(intervals: Sequence[Interval], end: int) -> dict[Class, int]:
    sums: dict[Class, int] = {}
    for (start, doing), stop in zip(intervals, [*(start for start, _ in intervals[1:]), end], strict=True):
        if doing is not None:
            sums[doing] = sums.get(doing, 0) + stop - start
    return sums


# --- what it is made of --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_the_lanes_add_up_to_the_seconds_of_the_summary(seed: int) -> None:
    timeline = timeline_of(simulated(seed).store.entries)
    for lane in timeline.lanes:
        sums = seconds_by_class(list(zip(lane.doing.times, lane.doing.values, strict=True)), timeline.end)
        assert {name: spent for name, spent in sums.items() if spent} == {
            name: spent for name, spent in lane.group.nanoseconds.items() if spent
        }
    assert [lane.group for lane in timeline.lanes] == timeline.summary.devices.groups


def test_every_swing_and_every_step_is_drawn() -> None:
    timeline = timeline_of(lending_run())
    data = chart_data(timeline)
    swings = cast("list[dict[str, object]]", data["swings"])
    assert [swing["swing"] for swing in swings] == [swing.swing for swing in timeline.summary.swings.all]
    assert all(cast(int, swing["from"]) <= cast(int, swing["to"]) <= cast(int, data["end"]) for swing in swings)
    curves = cast("dict[str, dict[str, list[float]]]", data["curves"])
    assert len(curves["actor/loss"]["mean"]) == timeline.summary.books.steps_done == 12
    assert curves["reward"]["mean"][1] == pytest.approx(0.2)
    assert "rollout/mean_reward" not in curves, "it is the reward already"


def test_the_number_to_go_back_at_is_there_while_the_devices_are_lent() -> None:
    timeline = timeline_of(lending_run())
    lends = [swing for swing in timeline.summary.swings.all if swing.target == "rollout" and swing.outcome == "done"]
    assert lends
    back = timeline.give_back_at
    for swing in lends:
        began, ended = timeline.swing_times[swing.swing]
        assert ended is not None
        assert back.values[bisect_right(back.times, began) - 1] is not None
        assert back.values[bisect_right(back.times, ended - 1) - 1] is not None


# --- thinning ------------------------------------------------------------------------------------------------------------------------


def test_thinned_intervals_are_few_and_their_sums_are_the_same() -> None:
    random = Random(1)
    names: tuple[Class | None, ...] = (*CLASSES, None)
    intervals: list[Interval] = []
    now = 0
    for _ in range(50_000):
        intervals.append((now, random.choice([name for name in names if not intervals or name != intervals[-1][1]])))
        now += random.choice((1, 10, 1000, 100_000))
    thinned = thin_intervals(intervals, now, most=1000)
    assert len(thinned) <= 1000
    assert seconds_by_class(thinned, now) == seconds_by_class(intervals, now)
    assert [start for start, _ in thinned] == sorted({start for start, _ in thinned})


def test_few_intervals_stay_as_they_are() -> None:
    intervals: list[Interval] = [(0, "training"), (5, "swinging"), (6, "generating")]
    assert thin_intervals(intervals, 100) == intervals
    assert thin_intervals([], 100) == []


def test_a_thinned_quantity_keeps_its_extremes() -> None:
    random = Random(2)
    changes = [(time, random.choice((None, random.randrange(100)))) for time in range(0, 500_000, 5)]
    changes[7777] = (7777 * 5, 1000)
    changes[8888] = (8888 * 5, -1000)
    thinned = thin_changes(changes, 500_000, most=400)
    assert len(thinned) <= 400
    assert changes[7777] in thinned
    assert changes[8888] in thinned
    assert thinned[0] == changes[0]
    assert thinned[-1] == changes[-1]


def test_a_thinned_curve_has_means_of_steps_in_a_row() -> None:
    points = thin_curve([1.0, 3.0, None, 5.0, None, None, 2.0], most=4)
    assert [(point.index, point.mean, point.smallest, point.largest) for point in points] == [
        (1, 2.0, 1.0, 3.0),
        (3, 5.0, 5.0, 5.0),
        (6, 2.0, 2.0, 2.0),
    ]


# --- words ---------------------------------------------------------------------------------------------------------------------------


def test_a_difference_says_by_how_much_and_whether_that_is_better() -> None:
    def told(first: float | None, other: float | None) -> tuple[str, str]:
        found = change(Number("", "", first, "s", "lower", 1), Number("", "", other, "s", "lower", 1))
        return found.text, found.judgement

    assert told(10.0, 8.0) == ("−2.0 s (−20.0 %)", "better")
    assert told(10.0, 11.0) == ("+1.0 s (+10.0 %)", "worse")
    assert told(10.0, 10.0001) == ("=", "")
    assert told(0.0, 2.0) == ("+2.0 s", "worse")
    assert told(None, 2.0) == ("", "")


def test_long_times_are_told_in_minutes_and_hours() -> None:
    assert [seconds_text(seconds) for seconds in (1.234, 119.0, 125.4, 7260.0, -130.0)] == [
        "1.23 s", "119.00 s", "2 min 05 s", "2 h 01 min", "−2 min 10 s",
    ]  # fmt: skip


def test_the_verdict_of_a_run_says_what_lending_cost_and_gave() -> None:
    summary = timeline_of(lending_run()).summary
    assert re.search(r"\d+ times the devices were lent. The swings there and back cost .* s; the lent devices generated", verdict(summary))
    assert verdict(timeline_of(run_without_lends()).summary).startswith("The devices were never lent. The trainer waited")
    alone = timeline_of(run_plan(small_plan(hybrid=()))).summary
    assert verdict(alone).startswith("No replica shares the trainer's devices")


def test_runs_are_compared_by_their_time_only_if_they_did_the_same_steps() -> None:
    lent, home = timeline_of(lending_run()).summary, timeline_of(run_without_lends()).summary
    assert re.search(r"B took .* s for the 12 steps that A did in .* s: .* % (longer|less)\.", comparison("AB", [lent, home]))
    shorter = timeline_of(run_plan(small_plan())).summary
    assert re.search(r"A did 12 steps in .* s, B 6 in", comparison("AB", [lent, shorter]))


# --- the page ------------------------------------------------------------------------------------------------------------------------


def test_the_page_fetches_nothing_and_words_of_the_log_cannot_leave_their_place() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    entries = [
        entry._replace(event=entry.event.model_copy(update={"detail": evil})) if isinstance(entry.event, RunEnded) else entry
        for entry in lending_run()
    ]
    page = render([timeline_of(entries)])
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", page)


def test_a_page_says_what_keeps_the_books_from_balancing() -> None:
    entries = list(lending_run())
    lost = next(entry.position for entry in entries if isinstance(entry.event, SampleReady))
    page = render([timeline_of(entry for entry in entries if entry.position != lost)])
    assert "not balanced" in page
    assert "but it is in flight" in page


@pytest.mark.parametrize("count", [1, 2, 12, 40])
def test_a_run_that_has_hardly_begun_has_a_page(count: int, tmp_path: Path) -> None:
    page = render([timeline_of(lending_run()[:count])])
    assert "has not ended" in page
    if count == 1:
        opened = open_page(page, tmp_path)
        assert 'data-drawn="yes"' in opened.shown
        assert opened.complaints == []


def test_the_page_of_a_run_opens_in_a_browser(tmp_path: Path) -> None:
    opened = open_page(render([timeline_of(lending_run())]), tmp_path, address="#t=0.1-0.8")
    assert opened.complaints == []
    assert 'data-drawn="yes"' in opened.shown
    for name in ("training", "generating", "swinging"):
        assert opened.count(rf'<path class="cell f-{name}"'), f"no lane shows {name}"
    for words in ("case", "Does lending pay?", "completed: 12 of 12 steps", "balanced", "a step needs 2", "s0", "trainer"):
        assert words in opened.shown
    assert "not recorded" not in opened.shown
    assert opened.count(r"<svg class=\"chart\"[^>]* viewBox") == 7
    assert "0.1000 s to 0.8000 s" in opened.shown, "the address says what part is shown"


LOOK_CLOSER = """{
const chart = document.querySelector('#timelines [data-run="1"] svg.chart');
const box = chart.getBoundingClientRect();
const at = (type, x, y) => chart.dispatchEvent(
  new PointerEvent(type, { clientX: box.left + x * box.width, clientY: box.top + y, button: 0, pointerId: 1, bubbles: true }));
const words = (svg) => [...svg.querySelectorAll("text")].map((text) => text.textContent).join();
const labels = () => [...document.querySelectorAll('[data-chart="ready"] svg.chart')].map(words);
const whole = labels();
at("pointermove", 0.6, box.height / 2);
const tip = document.getElementById("tip").textContent;
at("pointerdown", 0.5, 30); at("pointermove", 0.7, 30); at("pointerup", 0.7, 30);
const closer = labels();
document.querySelector('[data-axis="time"]').click();
document.querySelector('[data-zoom="all"]').click();
document.querySelector("tr[data-from]").click();
const swing = document.getElementById("shown").textContent;
document.querySelector('[data-zoom="all"]').click();
document.getElementById("layout").click();
document.body.append(Object.assign(document.createElement("pre"), {
  id: "found", textContent: JSON.stringify({ whole, tip, closer, swing, again: labels() })}));
}"""


def test_two_runs_stand_side_by_side_with_the_same_scales_and_are_looked_at_together(tmp_path: Path) -> None:
    opened = open_page(render([timeline_of(lending_run()), timeline_of(run_without_lends())]), tmp_path, LOOK_CLOSER, width=1600, dark=True)
    assert opened.complaints == []
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', opened.dom, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert found["whole"][0] == found["whole"][1], "the axes of both runs are the same"
    assert found["closer"][0] == found["closer"][1] != found["whole"][0], "both follow when one is looked at closer"
    assert re.search(r"at .* s", found["tip"])
    assert re.search(r"[\d.]+ s to [\d.]+ s", found["swing"]), "a row of the table shows its swing"
    for words in ("Comparison of 2 runs", "B took", "use_dynamic_resource_scheduling", "what it is more or less than A", "home"):
        assert words in opened.shown


def test_lost_processes_and_their_lanes_are_shown(tmp_path: Path) -> None:
    world = simulated_with("ReplicaLost", "SwitchDone", crashes=True)
    page = render([timeline_of(world.store.entries)])
    opened = open_page(page, tmp_path)
    assert opened.complaints == []
    assert "was lost" in opened.shown


def test_what_a_page_complains_of_is_found(tmp_path: Path) -> None:
    opened = open_page(render([timeline_of(lending_run())]), tmp_path, "nosuch();")
    assert any("nosuch is not defined" in complaint for complaint in opened.complaints)


# --- the command ---------------------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_about_the_recordings(tmp_path: Path) -> None:
    folders = [save(tmp_path / str(seed), simulated(seed).store) for seed in (1, 2)]
    out = tmp_path / "out.html"
    result = CliRunner().invoke(app, ["report", *map(str, folders), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 runs" in result.output
    assert "sim-1" in out.read_text()
    assert "sim-2" in out.read_text()


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", simulated(1).store)
    for arguments, words in (
        ([str(tmp_path)], "is no recording"),
        ([str(folder), "-o", str(tmp_path / "no" / "such.html")], "cannot be written"),
        ([str(folder)] * 7, "at most 6 fit on a page"),
    ):
        result = CliRunner().invoke(app, ["report", *arguments])
        assert result.exit_code == 2
        assert words in result.output


def test_a_plan_without_configuration_shows_its_own_settings() -> None:
    page = render([timeline_of(lending_run()), timeline_of(run_without_lends())])
    assert isinstance(lending_run()[0].event, RunPlanned)
    assert "<code>use_dynamic_resource_scheduling</code>" in page
