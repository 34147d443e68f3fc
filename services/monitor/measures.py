"""The measures of each training step, named with slashes: for `Measured` events and for trackers such as TensorBoard.

    …  StepDone(k − 1)  ├──────────── the window of step k ────────────┤  StepDone(k)  …        step 1: from the opening of boundary 0

perf/      shares of device-seconds in the window, and tokens a device-second, over all devices held, whoever holds them
time/      share of all device-seconds that each class took; they add up to 1
rollout/   what was ready and in flight at the step's end, and how stale its samples were
trainer/   what the step waited
weights/   bytes that replicas read or received of new weights in the window, and what these weights have in full
swing/     what swings that ended in the window cost, and what lent devices gave (see `services.monitor.swings`)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from bus.entry import Entry
from bus.events import Measured, StepDone
from services.monitor.classes import CLASSES
from services.monitor.device_times import Totals, share
from services.monitor.summary import Summary
from services.monitor.training import Distribution

_NOTHING = Totals({}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a window is measured from."""

    totals: Totals = _NOTHING
    wall_s: float = 0.0
    tokens_generated: int = 0
    swing_s: float = 0.0
    synced_bytes: int = 0
    full_bytes: int = 0
    lent_tokens: int = 0


class StepMeasures:
    """Looks at a `Summary` after each entry that it took in."""

    def __init__(self) -> None:
        self._before = _Moment()
        self._tokens_trained = 0

    def take(self, entry: Entry, summary: Summary) -> Measured | None:
        """The measures of the step that ended with this entry."""
        if not isinstance(entry.event, StepDone) or summary.training.newest is not entry.event:
            return None
        now = _Moment(
            summary.totals(), summary.wall_s, summary.tokens_generated, summary.swings.seconds,
            summary.syncs.num_bytes, summary.syncs.full_bytes, summary.swings.lent_tokens,
        )  # fmt: skip
        trained, self._tokens_trained = summary.training.tokens - self._tokens_trained, summary.training.tokens
        before, self._before = self._before, now
        values = {**_performance(before, now, trained), **_samples(summary), **_syncs(before, now), **_swings(before, now, summary)}
        return Measured(
            step=entry.event.step, values={name: value for name, value in values.items() if value is not None and isfinite(value)}
        )


def _performance(before: _Moment, now: _Moment, tokens_trained: int) -> dict[str, float | None]:
    window = now.totals - before.totals
    return {
        "perf/train_resource_utilization": window.train_utilization,
        "perf/rollout_resource_utilization": window.rollout_utilization,
        "perf/resource_utilization": window.utilization,
        "perf/tokens_per_device_second": share(now.tokens_generated - before.tokens_generated, window.held),
        "perf/throughput": share(tokens_trained, window.held),
        "perf/time_per_step": now.wall_s - before.wall_s,
        **{f"time/{name}": share(window.classes.get(name, 0.0), window.held) for name in CLASSES},
    }


def _samples(summary: Summary) -> dict[str, float | None]:
    return {
        "rollout/ready_samples": len(summary.books.ready),
        "rollout/in_flight_samples": len(summary.books.in_flight),
        **_spread("rollout/staleness", summary.training.newest_staleness),
        "trainer/wait_seconds": summary.training.waits_s[-1],
    }


def _spread(name: str, found: Distribution | None) -> dict[str, float | None]:
    return {} if found is None else {f"{name}/min": found.smallest, f"{name}/mean": found.mean, f"{name}/max": found.largest}


def _syncs(before: _Moment, now: _Moment) -> dict[str, float | None]:
    return {
        "weights/synced_bytes": now.synced_bytes - before.synced_bytes,
        "weights/full_bytes": now.full_bytes - before.full_bytes,
    }


def _swings(before: _Moment, now: _Moment, summary: Summary) -> dict[str, float | None]:
    tokens, rate = now.lent_tokens - before.lent_tokens, summary.standalone_tokens_per_s
    return {
        "swing/cost_seconds": now.swing_s - before.swing_s,
        "swing/lent_tokens": tokens,
        "swing/gain_seconds": tokens / rate if rate else None,
    }
