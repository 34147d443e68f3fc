"""`swingshift replay report`: reads the recordings and writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from bus.errors import ConfigError
from bus.recording import Recording
from replay.bar import Bar
from replay.report.page import MOST_RUNS, render
from replay.report.timeline import Timeline
from replay.whole import trusted_to_be_whole


@dataclass(frozen=True, slots=True)
class Written:
    """What came out."""

    path: Path
    entries: int
    num_bytes: int


def report_command(folders: Sequence[Path], path: Path) -> None:
    """Writes the page and says so. Raises SwingshiftError."""
    with Bar() as bar:
        written = write_report(folders, path, bar)
    runs = "1 run" if len(folders) == 1 else f"{len(folders)} runs"
    typer.echo(f"{written.path}: {runs}, {written.entries:,} entries, {written.num_bytes / 1e6:.2f} MB; open it in a browser")


def write_report(folders: Sequence[Path], path: Path, bar: Bar) -> Written:
    """Writes the page about these recordings. Raises ConfigError when there are none or too many, or nothing can be written there."""
    if len(folders) > MOST_RUNS:
        raise ConfigError(f"{len(folders)} recordings were named, at most {MOST_RUNS} fit on a page: leave some out")
    timelines = [read_timeline(folder, bar) for folder in folders]
    page = render(timelines).encode()
    try:
        path.write_bytes(page)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; name another file with -o") from error
    return Written(path, sum(timeline.summary.entries for timeline in timelines), len(page))


def read_timeline(folder: Path, bar: Bar) -> Timeline:
    """What happened when in a recorded run. Raises ConfigError, CodecError, LogError when it cannot be read."""
    timeline = Timeline()
    with Recording.open(folder) as recording, trusted_to_be_whole(folder):
        for entry in bar.follow(recording.entries(), f"reading {folder.name}", recording.last_position()):
            timeline.apply(entry)
    return timeline
