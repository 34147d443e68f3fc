"""`predictive`: plays the rest of the cycle through for each thing it could do, and does what ends soonest.

    score = end of the cycle + price · work left over        of: stay home | lend until n samples are ready (several n)

    boundary                   lend iff the best lend scores better than to stay
    lent, a sample is ready    take the devices back iff no later return scores better; move give_back_at when it would come too early
    home, the trainer waits    lend iff that scores better than to stay by more than a share of what the swings cost

Symbols, reasons and a worked example: docs/predictive.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, fsum

from pydantic import BaseModel, ConfigDict, Field

from bus.events import Value
from policies.forecast import Outcome, Situation, give_back, lend, stay
from policies.lengths import Lengths, estimate
from policies.protocol import Verdict
from policies.view import ScheduleView

FIRST_COST_S = 10.0
"""Seconds of a lend and its return until one was measured; at most FIRST_COST_SHARE of the seconds to the end of the cycle."""
FIRST_COST_SHARE = 0.05
MEASURED = 4
"""Newest swings and steps over which seconds are averaged."""
MOST_JOBS = 96
"""Samples that a forecast plays through; of more, every second, third, … stands for its neighbours."""
SHARES_OF_A_STEP = 2
"""Numbers of ready samples at which to give back are compared in halves of a step."""
SPEED_PRIOR = 24.0
"""Ends of samples on hybrids by which their speed is believed to be that of standalone replicas before it was seen."""
SLOWEST, FASTEST = 0.25, 4.0


class PredictiveParams(BaseModel):
    """Settings of `predictive`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    urgency: float = Field(default=1.0, ge=0, le=10)
    """Price of work that is left over when a cycle ends, 1: what it costs to do it with all replicas generating."""
    doubt: float = 1.0
    margin: float = Field(default=0.1, ge=0, le=10)
    """Share of the swings' seconds by which a lend at a boundary must be better than none."""
    margin_in_cycle: float = Field(default=1.0, ge=0, le=10)
    """The same for one in mid-cycle."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do next, and the numbers behind it."""

    best: Outcome
    """The best lend."""
    gain_s: float
    """By how much it scores better than the other thing that could be done: to stay, or to give back now."""
    evidence: dict[str, float]


class Predictive:
    """See the module."""

    def __init__(self, params: PredictiveParams) -> None:
        self._params = params

    @property
    def name(self) -> str:
        return "predictive"

    @property
    def params(self) -> dict[str, Value]:
        return self._params.model_dump()

    def verdict(self, view: ScheduleView) -> Verdict:
        lengths = estimate(view.in_flight)
        if lengths is None or not view.train_s:
            return self._explore(view)
        plan = self._compare(view, lengths, lent=False)
        if plan.gain_s > self._params.margin * plan.evidence["swing_s"]:
            return Verdict("rollout", plan.best.give_back_at, "ends_sooner", plan.evidence)
        return Verdict("train", 0, "no_gain", plan.evidence)

    def give_back_at(self, view: ScheduleView) -> int:
        lengths = estimate(view.in_flight)
        if lengths is None or not view.train_s or view.swings.holder != "lent":
            return view.shape.required_samples
        return self._compare(view, lengths, lent=True).best.give_back_at

    def decided(self, view: ScheduleView) -> None:
        """Nothing to remember: all that counts is in the view."""

    def lent(self, view: ScheduleView) -> None:
        """Nothing to remember."""

    def rebalance(self, view: ScheduleView) -> bool:
        return False

    def extra(self, view: ScheduleView) -> Verdict | None:
        if view.swings.running is not None:
            return None
        running = view.swings.lend
        if running is not None:
            return self._while_lent(view, running.give_back_at) if view.moment == "ready" else None
        return self._while_waiting(view) if view.moment == "waits" else None

    def _explore(self, view: ScheduleView) -> Verdict:
        """Too little is known to predict. A trainer that has no batch loses nothing by a lend until there is one."""
        need, ready = view.shape.required_samples, len(view.books.ready)
        evidence = {"ready": float(ready), "need": float(need)}
        return Verdict("rollout", need, "explores", evidence) if ready < need else Verdict("train", 0, "unknown", evidence)

    def _while_lent(self, view: ScheduleView, give_back_at: int) -> Verdict | None:
        ready = len(view.books.ready)
        if ready >= give_back_at or not view.train_s:
            return None
        lengths = estimate(view.in_flight)
        if lengths is None:
            return None
        plan = self._compare(view, lengths, lent=True)
        if plan.gain_s <= 0:
            return Verdict("train", ready, "rest_in_time", plan.evidence)
        if plan.best.give_back_at > give_back_at and ready + 1 >= give_back_at:
            return Verdict("rollout", plan.best.give_back_at, "too_early", plan.evidence)
        return None

    def _while_waiting(self, view: ScheduleView) -> Verdict | None:
        lengths = estimate(view.in_flight)
        if lengths is None or not view.train_s:
            return None
        plan = self._compare(view, lengths, lent=False)
        if plan.gain_s > self._params.margin_in_cycle * plan.evidence["swing_s"]:
            return Verdict("rollout", plan.best.give_back_at, "trainer_waits", plan.evidence)
        return None

    # --- the forecast ----------------------------------------------------------------------------------------------------------------

    def _compare(self, view: ScheduleView, lengths: Lengths, lent: bool) -> _Plan:
        now, scale = _situation(view, lengths, lent, self._params.doubt)
        price = self._price(view, now)
        ever = lend(now)
        counts = _counts(view, now, lent)
        outcomes = [give_back(ever, count) for count in counts]
        other = give_back(ever, now.ready) if lent else stay(now)
        best = min(outcomes, key=lambda outcome: outcome.score(price), default=other)
        evidence = {
            "ready": float(len(view.books.ready)),
            "in_flight": float(len(view.in_flight.jobs)),
            "sample_s": lengths.mean_s,
            "sample_sd_log": lengths.sd_log,
            "step_s": now.step_s,
            "swing_s": now.lend_s + now.return_s,
            "hybrid_speed": now.hybrid_speed,
            "price": price,
            ("now_s" if lent else "stay_s"): _finite(other.score(price)),
            "wait_s": _finite(other.wait_s),
        }
        evidence |= {f"lend_{outcome.give_back_at * scale}_s": _finite(outcome.score(price)) for outcome in outcomes}
        gain = other.score(price) - best.score(price) if best.score(price) < other.score(price) else 0.0
        return _Plan(Outcome(best.give_back_at * scale, best.end_s, best.wait_s, best.left_s), _finite(gain), evidence)

    def _price(self, view: ScheduleView, now: Situation) -> float:
        """Seconds that a second of work left over costs the cycles to come; there are none after the last one."""
        plan = view.books.plan
        assert plan is not None
        if plan.total_steps - view.books.steps_done <= now.steps:
            return 0.0
        return self._params.urgency / (now.standalone_places + now.hybrid_places * now.hybrid_speed)


FAR_S = 1e9
"""Stands for "never" in evidence."""


def _finite(seconds: float) -> float:
    return min(seconds, FAR_S)


def _mean_of_newest(seconds: list[float]) -> float:
    newest = seconds[-MEASURED:]
    return fsum(newest) / len(newest)


def _situation(view: ScheduleView, lengths: Lengths, lent: bool, doubt: float) -> tuple[Situation, int]:
    """Everything that a forecast starts from, and how many samples one of its samples stands for."""
    books, flight = view.books, view.in_flight
    plan = books.plan
    assert plan is not None
    at_boundary = view.is_open
    steps = min(plan.trigger_parameter_sync_step - (0 if at_boundary else books.steps_since_publication), plan.total_steps - books.steps_done)
    outstanding = len(flight.jobs) + len(books.ready) + (0 if at_boundary else books.used_since_publication)
    startable = 0 if books.stop_requested else max(0, min(books.limit - outstanding, books.prompts_left))
    standalone: list[float] = []
    hybrid: list[float] = []
    waiting: list[float] = []
    by_place = {"standalone": standalone, "hybrid": hybrid, None: waiting}
    for sample, job in flight.jobs.items():
        by_place[job.place].append(lengths.remaining_s(sample, flight.worked_s(job)))
    fresh = [lengths.fresh_s(sample) for sample in range(books.started, books.started + startable)]
    step_s = _mean_of_newest(list(view.train_s))
    lend_s, return_s = _swing_s(view, steps * step_s)
    return Situation(
        tuple(standalone), tuple(hybrid), tuple(waiting), tuple(fresh), flight.places["standalone"], flight.hybrid_places, 1.0,
        len(books.ready), plan.required_samples, steps, step_s, 0.0 if lent else lend_s, return_s,
        doubt * lengths.sd_s,
    ), 1  # fmt: skip


def _swing_s(view: ScheduleView, cycle_s: float) -> tuple[float, float]:
    """Seconds of a lend and of a return; what was never measured is taken as cheap enough to be tried."""
    first = min(FIRST_COST_S, FIRST_COST_SHARE * cycle_s) / 2
    out, back = view.swings.activations_s, view.swings.deactivations_s
    return _mean_of_newest(list(out)) if out else first, _mean_of_newest(list(back)) if back else first


def _counts(view: ScheduleView, now: Situation, lent: bool) -> list[int]:
    """Numbers of ready samples at which the devices could go back."""
    most = now.ready + len(now.standalone) + len(now.hybrid) + len(now.waiting) + len(now.fresh)
    part = max(1, now.step_samples // SHARES_OF_A_STEP)
    if lent:
        ahead = (1, part // 2, part, 2 * part, 3 * part, 4 * part, 6 * part)
        return sorted({now.ready + more for more in ahead if more > 0 and now.ready + more <= most})
    first = (ceil((now.ready + 1) / part)) * part
    return list(range(first, most + 1, part))
