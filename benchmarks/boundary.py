"""What the bus adds to a boundary: from StepDone to TrainGranted, and from the sample that completes a batch to training on it.

    python -m benchmarks.boundary [--boundaries 1000]

Real processes over a real server, with a learner and an engine that compute nothing. No swing: the policy is asked and never lends.
All services stamp their entries with the same machine's clock. Last line: one JSON object, milliseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.runs import quantile, run, scratch
from bus.entry import Entry
from bus.events import BatchFormed, SampleReady, StepDone, TrainGranted, WeightsPublished

CONFIG = Path(__file__).parent / "boundary.yaml"
MILLISECOND = 1e6


def boundary_delays_ms(entries: Sequence[Entry]) -> Iterator[float]:
    """StepDone(is_boundary) to TrainGranted, the publication's own time subtracted."""
    done_at = published_s = 0.0
    for entry in entries:
        if isinstance(entry.event, StepDone) and entry.event.is_boundary:
            done_at = entry.at
        elif isinstance(entry.event, WeightsPublished):
            published_s = entry.event.seconds
        elif isinstance(entry.event, TrainGranted) and done_at:
            yield (entry.at - done_at) / MILLISECOND - published_s * 1e3
            done_at = 0.0


def start_delays_ms(entries: Sequence[Entry]) -> Iterator[float]:
    """Append of the sample that completes a batch to the trainer's start on it, for batches that were waited for."""
    began = 0.0
    for entry in entries:
        if isinstance(entry.event, BatchFormed) and isinstance(entries[entry.cause - 1].event, SampleReady):
            began = entries[entry.cause - 1].at
        elif isinstance(entry.event, StepDone):
            if began:
                working_s = entry.event.seconds["load"] + entry.event.seconds["train"]
                yield (entry.at - began) / MILLISECOND - working_s * 1e3
            began = 0.0


def main() -> None:
    """Prints the distribution, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boundaries", type=int, default=1_000)
    boundaries = parser.parse_args().boundaries
    steps = f"async_training.total_steps={boundaries + 1}"
    finished = run(CONFIG, "boundary", [steps], scratch("boundary"))
    grants, starts = list(boundary_delays_ms(finished.entries)), list(start_delays_ms(finished.entries))
    for name, values in (("StepDone -> TrainGranted", grants), ("SampleReady -> training", starts)):
        print(
            f"{name}: {len(values)} times, p50 {quantile(values, 0.5):.2f} ms, p99 {quantile(values, 0.99):.2f} ms, "
            f"longest {max(values):.2f} ms"
        )
    result = {
        "boundaries": len(grants),
        "step_done_to_granted_p50_ms": round(quantile(grants, 0.5), 3),
        "step_done_to_granted_p99_ms": round(quantile(grants, 0.99), 3),
        "sample_to_training_p50_ms": round(quantile(starts, 0.5), 3),
        "sample_to_training_p99_ms": round(quantile(starts, 0.99), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
