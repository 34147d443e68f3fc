"""Runs a configuration as a user would, and reads what it left on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from bus.entry import Entry
from bus.recording import Recording


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that ended in order: its folder, its summary and its log."""

    folder: Path
    summary: dict[str, object]
    entries: list[Entry]


def run(config: Path, run_id: str, settings: Sequence[str], folder: Path) -> Finished:
    """`swingshift run CONFIG --run ID --set …` in `folder`. Raises SystemExit with the run's output when it fails."""
    command = [sys.executable, "-m", "swingshift", "run", str(config), "--run", run_id, "--set", f"folder={folder}"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    place = folder / run_id
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    summary = json.loads((place / "summary.json").read_text())
    with Recording.open(place) as recording:
        return Finished(place, summary, list(recording.entries()))


def scratch(name: str) -> Path:
    """A new folder for the runs of one benchmark; it stays, so that a result can be looked into."""
    return Path(tempfile.mkdtemp(prefix=f"swingshift-{name}-"))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]
