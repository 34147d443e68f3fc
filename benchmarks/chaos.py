"""SIGKILLs of every service, the server and everything at once during short real runs; afterwards nothing is lost, doubled or changed.

    python -m benchmarks.chaos [--kills 100] [--seed S] [--minutes M] [--kind scripted|model|both] [--targets trainer,redis,…]
    python -m benchmarks.chaos --seed S --only N --kind scripted          run N of seed S again

After each run: it ended in order, every step and sample once (the ledger balances), `replay verify` passes, `replay train` gives the
recorded digests, no version went back, and what Redis held was bounded. On a failure: the seed and the line that reruns it.
Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos_checks import check, hits_before_publication
from benchmarks.chaos_kills import plan_kills
from benchmarks.chaos_run import Attack, Broken, Fired
from benchmarks.chaos_shapes import make_shape
from benchmarks.runs import scratch
from bus.recording import Recording

KILLS_OF_A_RUN = 10
KINDS = {"scripted": ("scripted",), "model": ("model",), "both": ("scripted", "model")}


@dataclass
class Score:
    """What was done so far."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    aimed: int = 0
    before_publication: int = 0
    resumes: int = 0
    entries: int = 0
    samples: int = 0
    most_payloads: int = 0
    most_bytes: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def add(self, fired: Fired, samples: int) -> None:
        """A run that passed."""
        with Recording.open(fired.folder) as recording:
            entries = list(recording.entries())
        self.runs += 1
        self.kills.update(done.kill.target.partition(":")[0] for done in fired.kills)
        self.aimed += sum(done.aimed for done in fired.kills)
        self.before_publication += hits_before_publication(entries)
        self.resumes += fired.resumes
        self.entries += len(entries)
        self.samples += samples
        self.most_payloads = max([self.most_payloads, *fired.payloads])
        self.most_bytes = max(self.most_bytes, fired.most_bytes)


def strike(folder: Path, kind: str, seed: int, number: int, kills: int, targets: tuple[str, ...]) -> tuple[Fired, int]:
    """Run `number` of a seed; returns what became of it, and the samples it trained. Raises Broken."""
    shape = make_shape(kind, seed, number, kills)
    plan = plan_kills(seed, number, kills, shape.replicas, targets)
    fired = Attack(folder, f"{kind[0]}{seed}-{number}", shape, plan, say).carry_out()
    return fired, check(fired, shape).trained


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(arguments: list[str]) -> int:
    """Exit status 1 when a run broke; its folder stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="end when so many were killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None, help="begin no further run after so long")
    parser.add_argument("--kind", choices=KINDS, default="both")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", type=int, default=None, help="only the run of this number")
    parser.add_argument("--targets", default="", help="who is killed, separated by commas; unset: everybody")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are; unset: a new temporary folder")
    given = parser.parse_args(arguments)
    folder, targets = given.folder or scratch("chaos"), tuple(filter(None, given.targets.split(",")))
    score, began, number = Score(), time.monotonic(), given.first if given.only is None else given.only
    while score.total < given.kills and (given.minutes is None or time.monotonic() - began < 60 * given.minutes):
        kind = KINDS[given.kind][number % len(KINDS[given.kind])]
        try:
            fired, samples = strike(folder, kind, given.seed, number, KILLS_OF_A_RUN, targets)
        except Broken as error:
            only = f" --targets {given.targets}" if given.targets else ""
            say(f"BROKEN: seed {given.seed}, run {number} in {folder}: {error}")
            print(f"again: python -m benchmarks.chaos --seed {given.seed} --only {number} --kind {given.kind}{only}")
            return 1
        score.add(fired, samples)
        score.seconds = time.monotonic() - began
        told = f"run {number} ({kind}) passed, {samples} samples trained"
        say(f"{told}: {len(fired.kills)} kills, {score.total} of {given.kills} so far")
        shutil.rmtree(fired.folder)
        number += 1
        if given.only is not None:
            break
    print(json.dumps({**vars(score), "kills": score.total, "killed": dict(score.kills), "seconds": round(score.seconds, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
