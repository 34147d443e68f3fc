"""What policies cost: seconds of a decision, events a second that one follows, and whether the recorded decisions come out the same.

    python -m benchmarks.policies [--policies default,predictive] [--regime starved] [--cycles 500]

    benchmarks.queueing ─▶ a long log with this policy's own swings ─┬─▶ in memory: each entry timed; those that a decision follows apart
                                                                     └─▶ a server ─▶ RedisLog.read ▸ Host.take ▸ append    events/s

The log has no requests to replicas, nine in ten entries of a real one, which policies skip: each event counts here. Following is what the
service's main thread does (`bus.host`), reading, decoding and the appends of its verdicts included, in batches of the shell's size; its
verdicts must be those that the log was made with. A policy is written as in benchmarks/regimes.py.
Bars: a decision takes at most 2 ms (p99), 10,000 events/s are followed, recorded decisions agree. Both are processor time of the policy's
process, so that other programs on the machine do not spoil them: a decision's is the smallest of three rounds, events/s the median (and by
the clock beside it).
Last line: one JSON object. Exit status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.queueing.driven import drive
from benchmarks.queueing.jobs import Variant
from benchmarks.queueing.regime import Regimes
from benchmarks.queueing.variants import ORDER, variant
from benchmarks.runs import quantile
from bus.core import Core
from bus.embedded import EmbeddedServer
from bus.entry import Draft, Entry, Producer
from bus.errors import ConfigError
from bus.events import Event, PolicyAttached, RunPlanned
from bus.host import Host, decide_all, rebuild
from bus.redis_log import RedisLog
from policies.check import check_decisions
from policies.registry import POLICIES
from services.policy.core import SOURCE, PolicyCore
from services.policy.making import make_policy
from services.shell import READ_LIMIT

DECISIONS = Path(__file__).parents[1] / "tests/golden/policy_decisions.json"
LONGEST_MS = 2.0
LEAST_PER_S = 10_000
ROUNDS = 3
BATCH = 500


@dataclass(frozen=True, slots=True)
class Measured:
    """One policy's numbers."""

    entries: int
    decisions: int
    decision_p50_ms: float
    decision_p99_ms: float
    decision_max_ms: float
    entry_p99_ms: float
    """Of all entries: the state changes, and the policy is asked whether it wants anything."""
    follows_per_s: float
    follows_per_wall_s: float

    @property
    def passed(self) -> bool:
        """Both bars."""
        return self.decision_p99_ms <= LONGEST_MS and self.follows_per_s >= LEAST_PER_S


def core_of(found: Variant) -> PolicyCore:
    """A fresh one."""
    return PolicyCore(make_policy(found.name, found.params, found.source))


def long_log(found: Variant, regime: str, cycles: int) -> list[Entry]:
    """A run with this policy."""
    numbers = Regimes.load().by_name[regime].model_copy(update={"cycles": cycles})
    entries: list[Entry] = []
    drive(numbers, numbers.sample_lengths(1), make_policy(found.name, found.params, found.source), entries.append)
    return entries


def times_ms(core: Core, entries: Sequence[Entry]) -> tuple[list[float], list[int]]:
    """(milliseconds of processor time to apply each entry and to decide on it, indices of those on which something was decided).

    Raises SystemExit when it decides otherwise than when the log was made.
    """
    every, deciding = [], []
    decided: list[Event] = []
    for index, entry in enumerate(entries):
        began = time.thread_time()
        if not (entry.derived and entry.source == core.source):
            core.apply(entry)
        events = decide_all(core, entry.position)
        every.append((time.thread_time() - began) * 1e3)
        if events:
            deciding.append(index)
            decided += events
    same("in memory", decided, entries)
    return every, deciding


def same(where: str, decided: Sequence[Event], entries: Sequence[Entry]) -> None:
    """The decisions are those of the log."""
    recorded = [entry.event for entry in entries if entry.derived and entry.source == SOURCE]
    if list(decided) != recorded:
        raise SystemExit(f"{where}: {len(decided)} decisions differ from the {len(recorded)} that the log was made with")


def follow(url: str, run: str, found: Variant, entries: Sequence[Entry]) -> tuple[float, float]:
    """(events a second of processor time, and of wall-clock), from a real server through the host."""
    plan = entries[0].event
    assert isinstance(plan, RunPlanned)
    with RedisLog.create(url, plan.model_copy(update={"run": run}), at=0) as log:
        attached = PolicyAttached(name=found.name, params=found.params, mode="active", code="", source=found.source)
        start = log.attach(SOURCE, Draft(attached, derived=False, cause=0, at=0))
        others = [entry for entry in entries[1:] if entry.source != SOURCE]
        for first in range(0, len(others), BATCH):
            write(log, others[first : first + BATCH])
        last = log.last_position()
        core = core_of(found)
        position = rebuild(core, log.read(0, start.position))
        host = Host(core, log, start.producer, time.time_ns)
        decided: list[Event] = []
        wall, processor = time.perf_counter(), time.process_time()
        while position < last:
            batch = log.read(position, min(READ_LIMIT, last - position))
            position = batch[-1].position
            decided += host.take(batch)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    same("from the server", decided, entries)
    return len(others) / processor, len(others) / wall


def write(log: RedisLog, entries: Sequence[Entry]) -> None:
    """Appends entries as they are, but for epochs and causes, which no policy looks at."""
    first = 0
    for index in range(1, len(entries) + 1):
        if index == len(entries) or entries[index].source != entries[first].source:
            drafts = [Draft(entry.event, entry.derived, 0, entry.at) for entry in entries[first:index]]
            log.append(Producer(entries[first].source, 0), drafts)
            first = index


def measure(url: str, found: Variant, regime: str, cycles: int) -> Measured:
    """All numbers of one policy."""
    entries = long_log(found, regime, cycles)
    rounds = [times_ms(core_of(found), entries) for _ in range(ROUNDS)]
    every = [min(one) for one in zip(*(ms for ms, _ in rounds), strict=True)]
    deciding = [every[index] for index in rounds[0][1]]
    rates = [follow(url, f"{found.label}-{number}".replace("/", "-"), found, entries) for number in range(ROUNDS)]
    return Measured(
        entries=len(entries),
        decisions=len(deciding),
        decision_p50_ms=quantile(deciding, 0.5),
        decision_p99_ms=quantile(deciding, 0.99),
        decision_max_ms=max(deciding),
        entry_p99_ms=quantile(every, 0.99),
        follows_per_s=median(processor for processor, _ in rates),
        follows_per_wall_s=median(wall for _, wall in rates),
    )


def main() -> None:
    """Prints a line a policy, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(name for name in ORDER if name in POLICIES))
    parser.add_argument("--regime", default="starved")
    parser.add_argument("--cycles", type=int, default=500)
    options = parser.parse_args()
    golden = check_decisions(DECISIONS.read_text())
    print(f"recorded decisions: {golden.boundaries} boundaries agree, {golden.traces_differing} of {golden.traces} runs differ")
    passed = golden.traces_differing == 0
    result: dict[str, object] = {"golden_boundaries": golden.boundaries, "golden_differing": golden.traces_differing}
    try:
        variants = [variant(text) for text in options.policies.split(",")]
    except ConfigError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        for found in variants:
            measured = measure(server.url, found, options.regime, options.cycles)
            passed = passed and measured.passed
            print(
                f"{found.label}: {measured.entries} entries, {measured.decisions} decisions, p99 {measured.decision_p99_ms:.3f} ms, "
                f"longest {measured.decision_max_ms:.3f} ms; "
                f"follows {measured.follows_per_s:,.0f} events/s ({measured.follows_per_wall_s:,.0f} by the clock)",
                flush=True,
            )
            result[found.label] = {key: value if isinstance(value, int) else round(value, 4) for key, value in asdict(measured).items()}
    print(json.dumps({**result, "passed": passed}))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
