"""How long it takes to open a position of a long recording: `swingshift replay state DIR --at P`, a new process each time.

Run it with `python -m benchmarks.travel --entries 1000000`, which makes the recording first (some minutes), or with `--folder DIR` for one
that is there. The first look at a recording without snapshots folds it from the beginning and leaves snapshots behind, as a live run's
services do all the time; then positions all over the log are opened, each by a process that has just started. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.long_recording import record, simulate
from benchmarks.runs import quantile, scratch
from bus.recording import Recording


@dataclass(frozen=True, slots=True)
class Look:
    """Seconds of one look, the start of Python included: by the clock, and of the processor, which others cannot take away."""

    wall_s: float
    cpu_s: float


def look(folder: Path, *arguments: str) -> Look:
    """Raises SystemExit when it fails."""
    began, used = time.perf_counter(), _children_s()
    done = subprocess.run([sys.executable, "-m", "swingshift", "replay", "state", str(folder), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"replay state {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return Look(time.perf_counter() - began, _children_s() - used)


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(folder: Path, count: int) -> dict[str, float | int]:
    """Opens positions at random, and the two ends."""
    with Recording.open(folder) as recording:
        last = recording.last_position()
    first = look(folder, "--at", str(last))
    random = Random(0)
    looks = [look(folder, "--at", str(position)) for position in (1, last, *(random.randint(1, last) for _ in range(count)))]
    until = look(folder, "--at", str(last // 2), "--until", "SwitchStarted target=train")
    return {
        "entries": last,
        "first_look_s": round(first.wall_s, 2),
        "first_look_cpu_s": round(first.cpu_s, 2),
        "looks": len(looks),
        "median_s": round(quantile([each.wall_s for each in looks], 0.5), 3),
        "longest_s": round(max(each.wall_s for each in looks), 3),
        "median_cpu_s": round(quantile([each.cpu_s for each in looks], 0.5), 3),
        "longest_cpu_s": round(max(each.cpu_s for each in looks), 3),
        "until_s": round(until.wall_s, 3),
        "file_bytes": (folder / "events.sqlite").stat().st_size,
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--looks", type=int, default=40)
    options = parser.parse_args(arguments)
    folder = options.folder
    if folder is None:
        folder = scratch("travel")
        record(folder, simulate(options.entries))
    print(json.dumps(measure(folder, options.looks)))


if __name__ == "__main__":
    main(sys.argv[1:])
