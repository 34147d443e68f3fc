"""`swingshift replay train`: what is printed and written. Sets up the process before torch is loaded, as the trainer's was."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from bus.errors import ConfigError
from bus.events import RunPlanned, Value
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from replay.bar import Bar
from services.devices import as_far_as_here, this_machine
from services.learner import environment
from services.learner.planned import planned_settings

if TYPE_CHECKING:
    from replay.train import Retraining
    from replay.train_report import Report
    from services.learner.protocol import Learner

METRICS_FILE = "metrics.json"
MODEL_FOLDER = "model"


def train_command(folder: Path, first: int | None, last: int | None, overrides: Sequence[str], to: Path | None) -> bool:
    """Trains the run of a recording again and prints what came of it; True: as it was recorded. Raises SwingshiftError."""
    began = time.monotonic()
    for path in () if to is None else (to / METRICS_FILE, to / MODEL_FOLDER):
        if path.exists():
            raise ConfigError(f"{path} is there already: name another place with -o DIR, or remove it")
    with Recording.open(folder) as recording, PayloadRecording.open(folder) as payloads, Bar() as bar:
        plan = _plan(recording)
        differences = _environment(plan)
        from replay.train import Retraining, trained_steps
        from services.learner.redo import KINDS

        rows = bar.follow_to(recording.rows(kinds=KINDS), "reading", recording.last_position(), lambda row: row.position)
        steps = trained_steps(rows, folder)
        retraining = Retraining(folder, steps, payloads, lambda batches, what: bar.follow(batches, what, len(batches)), overrides)
        report, learner = retraining.run(first, last)
    try:
        _print(folder, report, differences, time.monotonic() - began)
        if to is not None:
            _write(to, report, retraining, learner)
    finally:
        learner.close()
    return report.passed


def _plan(recording: Recording) -> RunPlanned:
    plan = recording.entry(1).event
    if not isinstance(plan, RunPlanned):
        raise ConfigError(f"{recording.path} does not begin with a plan but with {plan.kind}: it is not the recording of a run")
    return plan


def _environment(plan: RunPlanned) -> Mapping[str, tuple[Value, Value]]:
    """Makes this process what the trainer's was, as far as it can be; returns in what it is another one: name -> (recorded, here)."""
    if "torch" not in sys.modules:
        environment.set_threads(as_far_as_here(plan.devices.get("trainer", ""), this_machine()))
    settings = planned_settings(plan)
    return {} if settings is None else environment.differences(plan, settings)


def _print(folder: Path, report: Report, differences: Mapping[str, tuple[Value, Value]], seconds: float) -> None:
    for name, (recorded, here) in differences.items():
        typer.echo(f"environment: {name} was {recorded}, here it is {here}")
    what = f"{len(report.steps)} steps trained again from {report.num_samples} recorded samples in {seconds:.1f} s"
    typer.echo(f"{folder}: {what}, beginning with {report.start}")
    if report.settings:
        _print_curves(report)
    if report.error:
        typer.echo(f"FAILED: {report.error}")
    elif report.settings:
        typer.echo(f"with {', '.join(report.settings)} from version {report.first} on: not compared with what was published")
    elif report.different is None:
        typer.echo(f"passed: {_names([version.version for version in report.versions])} bit for bit as published")
    else:
        _print_difference(report, differences)


def _print_curves(report: Report) -> None:
    from replay.curves import curves_table

    if report.different is not None:
        typer.echo(f"with the run's own settings version {report.different.version} has other weights here than were published")
    console = Console()
    console.print(curves_table([step for step in report.steps if step.changed], console.width))


def _print_difference(report: Report, differences: Mapping[str, tuple[Value, Value]]) -> None:
    version = report.different
    assert version is not None
    before = [earlier.version for earlier in report.versions[:-1]]
    typer.echo(f"FAILED: version {version.version} (step {version.step}) has other weights than were published")
    typer.echo(f"  recorded: {version.recorded}\n  now:      {version.now}")
    if before:
        typer.echo(f"  {_names(before)} bit for bit as published")
    if report.other_step is not None:
        step, name = report.other_step
        typer.echo(f"  the first other measure is {name} of step {step.step}: {step.recorded[name]!r} then, {step.now[name]!r} now")
    for cause in _causes(report, differences):
        typer.echo(f"  {cause}")


def _causes(report: Report, differences: Mapping[str, tuple[Value, Value]]) -> list[str]:
    version = report.different
    assert version is not None
    if not report.steps and version.step == 0:
        return ["likely: the initial model is another one than the run began with"]
    if not report.steps:
        return [f"likely: {report.start} was changed; name an earlier version with --from-version"]
    if version.revision:
        return ["likely: what RedoDiverged in the log says: the trainer was restarted, and its redo had come to other weights, too"]
    if differences:
        return [f"likely: {name}, which was {recorded} and is {here} here" for name, (recorded, here) in differences.items()]
    return ["likely: other code of the learner, or an operation that gives other bits each time (actor.deterministic: false)"]


def _names(versions: Sequence[int]) -> str:
    return f"version {versions[0]} is" if len(versions) == 1 else f"{len(versions)} versions, {versions[0]} to {versions[-1]}, are"


def _write(to: Path, report: Report, retraining: Retraining, learner: Learner) -> None:
    """metrics.json, and the weights as a Hugging Face folder; a scripted run has no model."""
    from services.learner.hf_folder import write_hf_folder

    to.mkdir(parents=True, exist_ok=True)
    settings = planned_settings(retraining.plan)
    if settings is not None:
        write_hf_folder(learner.weights(), retraining.model or Path(settings.model), to / MODEL_FOLDER)
    (to / METRICS_FILE).write_text(json.dumps(_metrics(retraining.plan, report), indent=1) + "\n")
    typer.echo(f"wrote {to / METRICS_FILE}" + ("" if settings is None else f" and the weights to {to / MODEL_FOLDER}"))


def _metrics(plan: RunPlanned, report: Report) -> dict[str, object]:
    return {
        "run": plan.run,
        "from_version": report.first,
        "to_version": report.last,
        "settings": list(report.settings),
        "passed": report.passed,
        "error": report.error,
        "versions": [
            {"version": version.version, "step": version.step, "recorded": version.recorded, "now": version.now}
            for version in report.versions
        ],
        "steps": [
            {"step": step.step, "changed": step.changed, "recorded": dict(step.recorded), "now": dict(step.now)} for step in report.steps
        ],
    }
