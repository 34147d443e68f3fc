"""Scheduling policies in the regimes of regimes.yaml: hours of each, against the best fixed ratio and cadence found in hindsight.

    python -m benchmarks.regimes [--regimes starved,bursty] [--policies default,predictive] [--seeds 1,2] [--json]

The model is benchmarks/queueing: real cores of trainer, controller and policy in virtual time, a queue of slots for the replicas. A policy
is a name, or path/file.py:ClassName; settings follow with a plus sign: `default+deactivate_ratio=0.6`. The last one is judged unless
--judge names another. `fluid`: hours with free swings and never an idle slot. --hidden adds the hours of all when swings cost nothing.
Last line: one JSON object. Exit status 1 when the judged policy fails a bar.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.queueing.jobs import Job, Result, Variant, perform_all
from benchmarks.queueing.judgement import HOUR_S, Bars, Best, fluid_hours, judge, mean_hours, search
from benchmarks.queueing.regime import FILE, Regimes
from benchmarks.queueing.variants import ORDER, variant
from bus.errors import ConfigError
from policies.registry import POLICIES
from replay.bar import Bar

WIDTH = 18
Key = tuple[str, bool, str]
"""(regime, with free swings, the policy's label, empty for the search)."""


class Judged:
    """All results of one call."""

    def __init__(self, regimes: Regimes, names: Sequence[str], variants: Sequence[Variant], judged: str) -> None:
        self._regimes = regimes
        self._names = names
        self._labels = [variant.label for variant in variants]
        self._judged = judged
        self._results: dict[Key, dict[int, Result]] = {}

    def add(self, job: Job, result: Result) -> None:
        """Takes in one result."""
        label = "" if job.variant is None else job.variant.label
        self._results.setdefault((job.regime, job.free_swings, label), {})[job.seed] = result

    def rows(self) -> list[Row]:
        """One a regime."""
        return [self._row(name) for name in self._names]

    def _row(self, name: str) -> Row:
        static, best = search(self._seconds(name, False, ""))
        hours = {label: mean_hours(self._seconds(name, False, label))[0] for label in self._labels}
        bars = judge(hours[self._judged], static, best.hours, name in self._regimes.changing)
        hidden: dict[str, float] = {}
        if (name, True, "") in self._results:
            hidden = {"best_fixed": search(self._seconds(name, True, ""))[1].hours}
            hidden |= {label: mean_hours(self._seconds(name, True, label))[0] for label in self._labels}
        return Row(name, static, best, fluid_hours(self._regimes.by_name[name]), hours, hidden, bars, self._details(name))

    def _seconds(self, name: str, free: bool, label: str) -> dict[int, tuple[float, ...]]:
        return {seed: result.seconds for seed, result in sorted(self._results[name, free, label].items())}

    def _details(self, name: str) -> dict[str, object]:
        """Policy -> what its runs did, means over the seeds."""
        found: dict[str, object] = {}
        for label in self._labels:
            results = [result for _, result in sorted(self._results[name, False, label].items())]
            found[label] = {
                "hours_per_seed": [result.seconds[0] / HOUR_S for result in results],
                "lends": fmean(result.lends for result in results),
                "extra_lends": fmean(result.extra_lends for result in results),
                "rejected": fmean(result.rejected for result in results),
                "waited_s": fmean(result.waited_s for result in results),
            }
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """What came out in one regime; hours are means over the seeds."""

    regime: str
    static: float
    best: Best
    fluid: float
    hours: dict[str, float]
    hidden: dict[str, float]
    """The same with free swings; empty unless asked for."""
    bars: Bars
    details: dict[str, object]

    def line(self) -> str:
        """For people."""
        best = f"{self.best.hours:.3f} ({self.best.setting.ratio:.2f}, /{self.best.setting.every})"
        columns = "".join(f" {hours:>{WIDTH}.3f}" for hours in self.hours.values())
        verdict = f"{'pass' if self.bars.passed else 'FAIL'}  {self.bars.over_static:.3f} of static"
        if self.bars.saves_as_much is not None or self.bars.beats_best is not None:
            verdict += f", {self.bars.share_of_saving:.1%} of the best saving"
        return f"{self.regime:<{WIDTH}} {self.static:>7.3f} {best:>{WIDTH}} {self.fluid:>7.3f}{columns}   {verdict}"

    def hidden_line(self) -> str:
        """Its hours with free swings."""
        best, *others = self.hidden.values()
        columns = "".join(f" {hours:>{WIDTH}.3f}" for hours in others)
        return f"{self.regime:<{WIDTH}} {'':>7} {best:>{WIDTH}.3f} {'':>7}{columns}"

    def as_json(self) -> dict[str, object]:
        """For programs."""
        found: dict[str, object] = {
            "hours": {"static": self.static, "best_fixed": self.best.hours, "fluid": self.fluid, **self.hours},
            "best_fixed": {"ratio": self.best.setting.ratio, "every": self.best.setting.every},
            "best_fixed_per_seed": [
                {"ratio": setting.ratio, "every": setting.every, "hours": hours} for setting, hours in self.best.per_seed
            ],
            "bars": {**asdict(self.bars), "passed": self.bars.passed},
            "policies": self.details,
        }
        if self.hidden:
            found["hours_with_free_swings"] = self.hidden
        rounded: dict[str, object] = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))
        return rounded


def table(rows: Sequence[Row], judged: str) -> str:
    """All rows, for people."""
    labels = "".join(f" {label[-WIDTH:]:>{WIDTH}}" for label in rows[0].hours)
    lines = [f"{'hours':<{WIDTH}} {'static':>7} {'best fixed':>{WIDTH}} {'fluid':>7}{labels}   {judged}", *(row.line() for row in rows)]
    if rows[0].hidden:
        lines += ["", "with free swings:", *(row.hidden_line() for row in rows)]
    return "\n".join(lines)


def main() -> None:
    """Prints the table, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE, help="a file of regimes")
    parser.add_argument("--regimes", default="", help="names, with commas; all by default")
    parser.add_argument("--policies", default=",".join(name for name in ORDER if name in POLICIES))
    parser.add_argument("--seeds", default="", help="numbers, with commas; those of the file by default")
    parser.add_argument("--judge", default="", help="the policy that is held against the bars; the last one by default")
    parser.add_argument("--hidden", action="store_true", help="all again with swings that cost nothing")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args()
    try:
        sys.exit(_run(options))
    except ConfigError as error:
        sys.exit(str(error))


def _run(options: argparse.Namespace) -> int:
    regimes = Regimes.load(options.file)
    names = options.regimes.split(",") if options.regimes else list(regimes.by_name)
    for name in names:
        if name not in regimes.by_name:
            raise ConfigError(f"there is no regime {name!r} in {options.file}: there are {', '.join(regimes.by_name)}")
    variants = [variant(text) for text in options.policies.split(",")]
    judged = options.judge or variants[-1].label
    if judged not in {found.label for found in variants}:
        raise ConfigError(f"--judge {judged}: it is not among --policies {options.policies}")
    seeds = {name: [int(seed) for seed in options.seeds.split(",")] if options.seeds else regimes.by_name[name].seeds for name in names}
    jobs = [
        Job(file=options.file, regime=name, seed=seed, free_swings=free, variant=policy)
        for free in ((False, True) if options.hidden else (False,))
        for name in names
        for seed in seeds[name]
        for policy in (None, *variants)
    ]
    results = Judged(regimes, names, variants, judged)
    with Bar() as bar:
        for job, result in bar.follow(perform_all(jobs, options.processes), "runs", len(jobs)):
            results.add(job, result)
    rows = results.rows()
    if not options.json:
        print(table(rows, judged))
    passed = all(row.bars.passed for row in rows)
    print(json.dumps({"judged": judged, "passed": passed, "regimes": {row.regime: row.as_json() for row in rows}}))
    return 0 if passed else 1


if __name__ == "__main__":
    main()
