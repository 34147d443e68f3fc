"""What a run says of its evaluations: in the summary, in a line for who watches, on the axis of the trackers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

from rich.console import Console

from bus.entry import Entry
from bus.events import EvalDone
from services.config import MonitorConfig
from services.monitor.notes import note_of
from services.monitor.report import print_summary
from services.monitor.reporter import Reporter
from services.monitor.summary import Summary, summarise
from services.monitor.trackers import FOLDER, Trackers
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.services.monitor.test_trackers import read_back


def evaluated() -> list[Entry]:
    return run_plan(small_plan(num_validation=2, eval_every_versions=1, eval_before_train=True))


def watch(entries: list[Entry], folder: Path) -> None:
    """A monitor that only tracks, from the first entry to the last."""
    summary, trackers = Summary(), Trackers(MonitorConfig(), "r", folder)
    reporter = Reporter(None, trackers, clock=lambda: 0)
    for entry in entries:
        summary.apply(entry)
        reporter.take(entry, summary)
    trackers.close()


def test_the_summary_has_one_line_a_version_and_names_the_first_and_the_last_score() -> None:
    entries = evaluated()
    done = of_kind(entries, EvalDone)
    summary = summarise(entries)
    listed = cast("list[dict[str, object]]", summary["evaluations"])
    assert [evaluation["version"] for evaluation in listed] == [event.version for event in done] == [0, 1, 2, 3]
    console = Console(file=io.StringIO(), width=120)
    print_summary(summary, console=console)
    text = cast(io.StringIO, console.file).getvalue()
    first, last = done[0].metrics["eval/mean_reward"], done[-1].metrics["eval/mean_reward"]
    assert f"{first:.3f} (version 0), {last:.3f} (version 3); 4 versions, 0 of them in part" in text


def test_who_watches_is_told_when_an_evaluation_is_done() -> None:
    done = EvalDone(version=4, num_prompts=3, partial=True, metrics={"eval/mean_reward": 0.25})
    entry = Entry(1, "rollouter", 1, True, 0, 0, "", done)
    assert note_of(entry, opened=True) == "evaluation of version 4 in part: mean reward 0.250"
    skipped = entry._replace(event=done.model_copy(update={"metrics": {}}))
    assert note_of(skipped, opened=True) == "evaluation of version 4 in part: no score"


def test_each_evaluation_is_tracked_once_at_the_step_that_was_the_newest_when_it_was_done(tmp_path: Path) -> None:
    entries = evaluated()
    middle = next(entry.position for entry in entries if isinstance(entry.event, EvalDone) and entry.event.version == 2)
    watch(entries[:middle], tmp_path)
    watch(entries, tmp_path)
    found = read_back(tmp_path / FOLDER)
    assert [point[2] for point in found["eval/version"]] == [0, 1, 2, 3]
    rewards = [event.metrics["eval/mean_reward"] for event in of_kind(entries, EvalDone)]
    assert [round(point[2], 5) for point in found["eval/mean_reward"]] == [round(reward, 5) for reward in rewards]
    steps = [point[0] for point in found["eval/version"]]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] == 6
