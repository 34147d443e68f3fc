"""What swapping the policy costs: many swaps in one run under load, and the boundaries at which they fall.

    python -m benchmarks.swap [--swaps 50]

Real processes over a real server, with a learner and an engine that compute nothing, so that a boundary comes every few milliseconds; no
lends, so that each boundary leads to a grant. A boundary has a swap if a newcomer attached since the boundary before it was granted. Times
are from StepDone to TrainGranted, the publication's own time subtracted. Last line: one JSON object; exit status 1 when a boundary has not
exactly one verdict, a verdict is not of the policy that counts, or the largest time with a swap is 50 ms or more over the median without.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.runs import quantile, scratch
from bus.embedded import folder_url
from bus.entry import Draft, Entry
from bus.events import (
    DeadlineMissed,
    PolicyAttached,
    PolicyRequested,
    StepDone,
    StopRequested,
    SwitchRejected,
    SwitchRequested,
    TrainGranted,
    WeightsPublished,
)
from bus.recording import Recording
from bus.redis_log import RedisLog
from services.launcher.folders import SERVER
from services.policy.asking import OPERATOR, ask, wait_for

CONFIG = Path(__file__).parent / "boundary.yaml"
RUN = "swap"
SETTINGS = ("async_training.total_steps=1000000", "scripted.seconds_per_step=0.02")
"""No end, and steps that leave the cores some time for the processes that are started."""
MILLISECOND = 1e6
MOST_MS = 50.0
PATIENCE_S = 60.0
CHOICES = (
    PolicyRequested(action="swap", name="fixed_ratio", params={"deactivate_ratio": 0.0}),
    PolicyRequested(action="swap", name="static_fully_async"),
)


@dataclass
class Swaps:
    """What a log says of its swaps."""

    with_swap_ms: list[float] = field(default_factory=list)
    without_ms: list[float] = field(default_factory=list)
    while_open: int = 0
    """Swaps that fell between a boundary's StepDone and its answer: the newcomer answered it."""
    wrong_epoch: int = 0
    """Verdicts of a policy that did not count."""
    verdicts: Counter[int] = field(default_factory=Counter)
    """Boundary -> verdicts."""
    missed: int = 0
    late: int = 0


def measured(entries: Sequence[Entry]) -> Swaps:
    """Folds a log. Boundaries at the very end, when the run was asked to stop, count like any."""
    found = Swaps()
    epoch, swapped, done_at, published_s, is_open = 0, False, 0, 0.0, False
    for entry in entries:
        match entry.event:
            case PolicyAttached(mode="active") as event:
                epoch = entry.epoch
                swapped = swapped or event.request > 0
                found.while_open += is_open and event.request > 0
            case StepDone(is_boundary=True):
                done_at, is_open = entry.at, True
            case WeightsPublished() as event:
                published_s = event.seconds
            case SwitchRequested(answers=int(version)):
                is_open = False
                found.verdicts[version] += 1
                found.wrong_epoch += entry.epoch != epoch
            case TrainGranted() if done_at:
                delay_ms = (entry.at - done_at) / MILLISECOND - published_s * 1e3
                (found.with_swap_ms if swapped else found.without_ms).append(delay_ms)
                swapped, done_at = False, 0
            case DeadlineMissed():
                found.missed += 1
            case SwitchRejected(reason="late"):
                found.late += 1
            case _:
                pass
    return found


def swap_often(url: str, swaps: int) -> list[float]:
    """Asks for one policy after the other; returns the seconds from each request to its PolicyAttached."""
    seconds = []
    with RedisLog.open(url, RUN) as log:
        for number in range(swaps):
            choice, began = CHOICES[number % len(CHOICES)], time.monotonic()
            outcome = wait_for(log, ask(log, choice), choice, PATIENCE_S)
            if outcome is None or outcome.how != "attached":
                raise SystemExit(f"swap {number + 1} came to nothing: {outcome}")
            seconds.append(time.monotonic() - began)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {swaps} swaps", end="", file=sys.stderr, flush=True)
        log.append(OPERATOR, [Draft(StopRequested(reason="benchmark"), derived=False, cause=0, at=time.time_ns())])
    return seconds


def run_with_swaps(folder: Path, swaps: int) -> tuple[list[Entry], list[float]]:
    """Runs until all swaps are done; returns the log, and the seconds that each took. Raises SystemExit when the run fails."""
    command = [sys.executable, "-m", "swingshift", "run", str(CONFIG), "--run", RUN, "--set", f"folder={folder}"]
    for setting in SETTINGS:
        command += ["--set", setting]
    with (folder / "output").open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            seconds = swap_often(wait_for_run(folder / RUN, running), swaps)
            if running.wait(PATIENCE_S) != 0:
                raise SystemExit(f"the run failed: {folder / 'output'}")
        finally:
            running.kill()
            running.wait()
    with Recording.open(folder / RUN) as recording:
        return list(recording.entries()), seconds


def wait_for_run(place: Path, running: subprocess.Popen[bytes]) -> str:
    """URL of the run's server, once its third version is published."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up and running.poll() is None:
        url = folder_url(place / SERVER)
        if url is not None and (place / "events.sqlite").is_file():
            with RedisLog.open(url, RUN) as log:
                if any(isinstance(entry.event, StepDone) for entry in log.read(0, 500)):
                    return url
        time.sleep(0.1)
    raise SystemExit(f"the run did not begin: {place}")


def main() -> None:
    """Prints what was measured, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=50)
    folder = scratch("swap")
    entries, seconds = run_with_swaps(folder, parser.parse_args().swaps)
    found = measured(entries)
    median, largest = quantile(found.without_ms, 0.5), max(found.with_swap_ms)
    twice = sum(count > 1 for count in found.verdicts.values())
    unanswered = len([version for version in range(max(found.verdicts)) if not found.verdicts[version]])
    print(
        f"{len(seconds)} swaps, {found.while_open} of them while a boundary was open; asked to attached "
        f"p50 {quantile(seconds, 0.5):.2f} s, longest {max(seconds):.2f} s"
    )
    print(
        f"StepDone -> TrainGranted: {len(found.without_ms)} boundaries without a swap, p50 {median:.2f} ms, "
        f"p99 {quantile(found.without_ms, 0.99):.2f} ms, longest {max(found.without_ms):.2f} ms; {len(found.with_swap_ms)} with one, "
        f"p50 {quantile(found.with_swap_ms, 0.5):.2f} ms, longest {largest:.2f} ms"
    )
    faults = {
        "verdicts_twice": twice, "unanswered": unanswered, "missed": found.missed, "late": found.late, "wrong_epoch": found.wrong_epoch,
    }  # fmt: skip
    result = {
        "swaps": len(seconds),
        "boundaries": len(found.without_ms) + len(found.with_swap_ms),
        "median_without_ms": round(median, 3),
        "largest_with_ms": round(largest, 3),
        "excess_ms": round(largest - median, 3),
        "asked_to_attached_p50_s": round(quantile(seconds, 0.5), 3),
        **faults,
        "runs": str(folder),
    }
    print(json.dumps(result))
    sys.exit(0 if largest - median < MOST_MS and not any(faults.values()) else 1)


if __name__ == "__main__":
    main()
