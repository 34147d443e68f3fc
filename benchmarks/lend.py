"""What lending the trainer's device saves: the same run with `static_fully_async` and with a dynamic policy, in turn.

    python -m benchmarks.lend [--pairs 3] [--policy default]

Same seed, same number of trained samples, start-up excluded (boundary 0 to the end of the run). The best possible ratio is that of swings
without cost at the rates measured in the static run: with S samples a cycle, r samples/s of the standalone replica, r_h of the hybrid and
training taking t seconds of it, a lent cycle takes T = (S + r_h t) / (r + r_h), a static one max(S / r, t).
Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from benchmarks.runs import Finished, run, scratch
from bus.entry import Entry
from bus.events import BoundaryOpened, RunEnded, RunPlanned, StepDone, SwitchDone, SwitchStarted

CONFIG = Path(__file__).parent / "lend.yaml"
STATIC = "static_fully_async"
SECOND = 1e9


def wall_s(entries: Sequence[Entry]) -> float:
    """Boundary 0 to the end of the run, both by the controller's clock."""
    began = next(entry.at for entry in entries if isinstance(entry.event, BoundaryOpened))
    ended = next(entry.at for entry in entries if isinstance(entry.event, RunEnded))
    return (ended - began) / SECOND


def training_s(entries: Sequence[Entry]) -> float:
    """Seconds of all steps, without waiting."""
    steps = [entry.event for entry in entries if isinstance(entry.event, StepDone)]
    return sum(step.seconds["train"] + step.seconds["load"] for step in steps)


def rewards(entries: Sequence[Entry]) -> list[float]:
    """Mean reward of each step."""
    return [entry.event.metrics["rollout/mean_reward"] for entry in entries if isinstance(entry.event, StepDone)]


def swing_seconds(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Target -> seconds of each swing that came to its end."""
    started: dict[int, int] = {}
    seconds: dict[str, list[float]] = {"rollout": [], "train": []}
    for entry in entries:
        if isinstance(entry.event, SwitchStarted):
            started[entry.event.swing] = entry.at
        elif isinstance(entry.event, SwitchDone):
            seconds[entry.event.target].append((entry.at - started[entry.event.swing]) / SECOND)
    return seconds


def best_ratio(wall: float, training: float, cycles: int) -> float:
    """The ratio that free swings would give, the hybrid as fast as the standalone replica."""
    cycle, trained = wall / cycles, training / cycles
    return ((1 + trained / cycle) / 2) if trained < cycle else 1.0


def cycles_of(entries: Sequence[Entry]) -> int:
    """Cycles of the run's plan."""
    plan = entries[0].event
    assert isinstance(plan, RunPlanned)
    return plan.total_steps // plan.trigger_parameter_sync_step


def report(name: str, finished: Finished) -> float:
    """Prints one run's line; returns its seconds."""
    entries = finished.entries
    wall, reward = wall_s(entries), rewards(entries)
    quarter = max(1, len(reward) // 4)
    swings = swing_seconds(entries)
    print(
        f"{name}: {wall:.1f} s, training {training_s(entries):.1f} s, {len(swings['rollout'])} lends, "
        f"reward {fmean(reward[:quarter]):.3f} -> {fmean(reward[-quarter:]):.3f}",
        flush=True,
    )
    return wall


def main() -> None:
    """Prints each run, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--policy", default="default")
    options = parser.parse_args()
    folder = scratch("lend")
    ratios, shares, best = [], [], []
    for pair in range(options.pairs):
        static = run(CONFIG, f"static-{pair}", [f"policy.name={STATIC}"], folder)
        dynamic = run(CONFIG, f"dynamic-{pair}", [f"policy.name={options.policy}"], folder)
        static_s, dynamic_s = report(f"{STATIC} {pair}", static), report(f"{options.policy} {pair}", dynamic)
        cycles = cycles_of(static.entries)
        swings = swing_seconds(dynamic.entries)
        ratios.append(dynamic_s / static_s)
        shares.append((fmean(swings["rollout"]) + fmean(swings["train"])) / (static_s / cycles))
        best.append(best_ratio(static_s, training_s(static.entries), cycles))
        print(f"  ratio {ratios[-1]:.3f}, a pair of swings is {shares[-1]:.3f} of a cycle, best possible {best[-1]:.3f}", flush=True)
    result = {
        "ratio_median": round(median(ratios), 4),
        "swing_share": round(median(shares), 4),
        "best_possible_ratio": round(median(best), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "policy": options.policy,
        "runs": str(folder),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
