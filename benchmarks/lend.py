"""What lending the trainer's device saves: the same run with `static_fully_async` and with a dynamic policy, in turn.

    python -m benchmarks.lend [--pairs 3] [--policy default+deactivate_ratio=0.6]
    python -m benchmarks.lend --policy predictive --against default+deactivate_ratio=0.6        two dynamic policies
    python -m benchmarks.lend --engine vllm        in the environment that has vLLM

A policy is written as in benchmarks/regimes.py. With each engine the slots are such that generation takes about twice as long as training.
Same seed, same number of trained samples, start-up excluded (boundary 0 to the end of the run). The best possible ratio is that of swings
without cost at the rates measured in the static run: with S samples a cycle, r samples/s of the standalone replica, r_h of the hybrid and
training taking t seconds of it, a lent cycle takes T = (S + r_h t) / (r + r_h), a static one max(S / r, t).
Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.queueing.variants import variant
from benchmarks.runs import Finished, run, scratch
from bus.entry import Entry
from bus.events import BoundaryOpened, RunEnded, RunPlanned, StepDone, SwitchDone, SwitchStarted

CONFIG = Path(__file__).parent / "lend.yaml"
STATIC = "static_fully_async"
DYNAMIC = "default+deactivate_ratio=0.6"
SECOND = 1e9
ENGINES: dict[str, list[str]] = {
    "embedded": [],
    # vLLM takes 5 ms a step besides the model's computing, and an answer takes all services together about 10 ms: with a larger model this
    # is a smaller share. Cycles have fewer steps, so that they are not longer in time.
    "vllm": [
        "rollout.engine=vllm",
        "rollout.engine_kwargs={}",
        "rollout.max_running_requests=5",
        "model.shape.hidden_size=512",
        "model.shape.intermediate_size=2048",
        "async_training.trigger_parameter_sync_step=2",
        "async_training.total_steps=16",
    ],
}
"""Engine -> what is other than in lend.yaml."""


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


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs that were made one after the other."""

    base: Finished
    compared: Finished

    @property
    def ratio(self) -> float:
        """Seconds of the policy / seconds of the one it is compared with."""
        return wall_s(self.compared.entries) / wall_s(self.base.entries)

    @property
    def swing_share(self) -> float:
        """A lend and a return of the policy, in cycles of the other run; 0: it did not lend."""
        swings = swing_seconds(self.compared.entries)
        pair_s = sum(fmean(seconds) for seconds in swings.values() if seconds)
        return pair_s * cycles_of(self.base.entries) / wall_s(self.base.entries)

    @property
    def best_ratio(self) -> float:
        """What free swings would give, if `base` is the static run."""
        return best_ratio(wall_s(self.base.entries), training_s(self.base.entries), cycles_of(self.base.entries))


def run_pair(number: int, compared: str, against: str, settings: Sequence[str], folder: Path) -> Pair:
    """Every other pair begins with the other policy: a machine that gets slower or faster favours neither."""
    names = {"base": against, "compared": compared}
    runs = {}
    for side in sorted(names, reverse=number % 2 == 1):
        found = variant(names[side])
        policy = json.dumps({"name": found.name, "params": found.params})
        runs[side] = run(CONFIG, f"{side}-{number}", [f"policy={policy}", *settings], folder)
        report(f"{names[side]} {number}", runs[side])
    return Pair(runs["base"], runs["compared"])


def main() -> None:
    """Prints each run, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--policy", default=DYNAMIC)
    parser.add_argument("--against", default=STATIC, help="the policy that it is compared with")
    parser.add_argument("--engine", choices=list(ENGINES), default="embedded")
    parser.add_argument("--steps", type=int, help="training steps of each run, else those of lend.yaml")
    options = parser.parse_args()
    settings = ENGINES[options.engine] + ([f"async_training.total_steps={options.steps}"] if options.steps else [])
    folder = scratch("lend")
    pairs = []
    for number in range(options.pairs):
        pairs.append(run_pair(number, options.policy, options.against, settings, folder))
        print(f"  ratio {pairs[-1].ratio:.3f}, a pair of swings is {pairs[-1].swing_share:.3f} of a cycle", flush=True)
    result: dict[str, object] = {
        "ratio_median": round(median(pair.ratio for pair in pairs), 4),
        "swing_share": round(median(pair.swing_share for pair in pairs), 4),
        "ratios": [round(pair.ratio, 4) for pair in pairs],
        "policy": options.policy,
        "against": options.against,
        "engine": options.engine,
        "runs": str(folder),
    }
    if options.against == STATIC:
        result["best_possible_ratio"] = round(median(pair.best_ratio for pair in pairs), 4)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
