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

from rich.console import Console
from rich.text import Text

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
    said: list[str] = []
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        Console(stderr=True).status(f"{run_id}: starts") as status,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            status.update(Text(f"{run_id}: {line.strip()}"))
    place = folder / run_id
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(said)[-4000:]}")
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
