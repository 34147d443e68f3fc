"""What the estimates of shadows are worth: in the regimes of regimes.yaml, against what running the shadow's policy itself gives.

    python -m benchmarks.shadows [--regimes starved,bursty] [--seeds 1] [--active default,separate_async]

Each active policy runs once a regime and seed while all the policies watch as shadows, and each policy runs by itself, too. An estimate
takes each boundary from where the active policy had led the run, while two runs drift apart: so it is its sign that is judged. Is a shadow
that is said to save seconds one that would have been quicker? Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.queueing.driven import drive
from benchmarks.queueing.jobs import Variant
from benchmarks.queueing.regime import Regime, Regimes
from benchmarks.queueing.variants import variant
from bus.books import Books
from bus.entry import Entry
from bus.events import PolicyAttached
from bus.host import decide_all
from policies.protocol import Policy
from replay.bar import Bar
from services.monitor.policy_history import PolicyHistory
from services.monitor.shadows import ShadowComparisons
from services.policy.core import PolicyCore
from services.policy.making import make_policy

POLICIES = (
    "static_fully_async", "fixed_ratio+deactivate_ratio=0.3", "fixed_ratio+deactivate_ratio=0.6", "default+deactivate_ratio=0.6",
    "separate_async",
)  # fmt: skip
ACTIVE = POLICIES[1:]
FROM_PERCENT = (1.0, 5.0)
"""Differences of the runs' lengths from which on a sign is judged."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A shadow against the policy that decided."""

    regime: str
    seed: int
    active: str
    shadow: str
    differ: int
    estimated: int
    estimated_percent: float
    """Of the run's seconds, saved by the estimate."""
    real_percent: float
    """The same, by running both."""


class Watched:
    """The monitor's folds, on a run whose shadows answer at once."""

    def __init__(self, shadows: Sequence[Variant]) -> None:
        self.comparisons = ShadowComparisons()
        self._books, self._history = Books(), PolicyHistory()
        self._cores = [PolicyCore(_made(shadow), "shadow", shadow.label) for shadow in shadows]

    def take(self, entry: Entry) -> None:
        """The next entry, and what the shadows say to it."""
        self._fold(entry)
        if isinstance(entry.event, PolicyAttached):
            for core in self._cores:
                attached = PolicyAttached(name=core.policy.name, params=dict(core.policy.params), mode="shadow", code="")
                self._fold(entry._replace(source=core.source, event=attached))
        for core in self._cores:
            core.apply(entry)
            for event in decide_all(core, entry.position):
                self._fold(entry._replace(source=core.source, derived=True, cause=entry.position, event=event))

    def _fold(self, entry: Entry) -> None:
        self._books.apply(entry.event)
        self._history.apply(entry, self.comparisons.next_boundary)
        self.comparisons.apply(entry, self._books, self._history)


def pairs_of(regime: Regime, seed: int, active: Variant, seconds: dict[str, float], shadows: Sequence[Variant]) -> Iterator[Pair]:
    """What one run of the active policy gives. `seconds`: of each policy by itself."""
    watched = Watched(shadows)
    drive(regime, regime.sample_lengths(seed), _made(active), watched.take)
    whole = seconds[active.label]
    for comparison in watched.comparisons.all.values():
        if comparison.label != active.label:
            real = whole - seconds[comparison.label]
            yield Pair(
                regime.name, seed, active.label, comparison.label, comparison.differ, comparison.estimated,
                100 * comparison.saved_s / whole, 100 * real / whole,
            )  # fmt: skip


def right_signs(pairs: Iterable[Pair], from_percent: float) -> tuple[int, int]:
    """(estimates of the right sign, all), of pairs whose runs differ by so much."""
    judged = [pair for pair in pairs if abs(pair.real_percent) >= from_percent and pair.estimated]
    return sum(pair.estimated_percent * pair.real_percent > 0 for pair in judged), len(judged)


def _made(chosen: Variant) -> Policy:
    return make_policy(chosen.name, chosen.params, chosen.source)


def main() -> None:
    """Prints a line a pair, then the JSON line."""
    regimes = Regimes.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regimes", default=",".join(regimes.by_name))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--active", default=",".join(ACTIVE))
    parser.add_argument("--policies", default=",".join(POLICIES), help="those that watch")
    asked = parser.parse_args()
    shadows, active = ([variant(text) for text in listed.split(",")] for listed in (asked.policies, asked.active))
    places = [(regimes.by_name[name], int(seed)) for name in asked.regimes.split(",") for seed in asked.seeds.split(",")]
    pairs: list[Pair] = []
    with Bar() as bar:
        for regime, seed in bar.follow(places, "regimes", len(places)):
            lengths, chosen = regime.sample_lengths(seed), {each.label: each for each in (*shadows, *active)}
            seconds = {label: drive(regime, lengths, _made(each)).seconds for label, each in chosen.items()}
            for each in active:
                pairs.extend(pairs_of(regime, seed, each, seconds, shadows))
    for pair in pairs:
        line = f"{pair.regime:18} {pair.seed} {pair.active:32} {pair.shadow:32} {pair.differ:3} differ"
        print(f"{line}  estimated {pair.estimated_percent:+6.1f} %  real {pair.real_percent:+6.1f} %")
    signs = {f"from_{limit:g}_percent": right_signs(pairs, limit) for limit in FROM_PERCENT}
    print(json.dumps({"right_signs": signs, "pairs": [asdict(pair) for pair in pairs]}))


if __name__ == "__main__":
    main()
