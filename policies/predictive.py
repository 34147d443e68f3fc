"""`predictive`: plays the rest of the cycle through for each thing it could do, and does what ends soonest.

    score = seconds to the end of the cycle + price · seconds of work left over then        of: stay home | lend until n samples are ready

    boundary                   lend iff the best lend scores better than to stay
    lent, a sample is ready    take the devices back iff no later return scores better; move give_back_at when it would come too early
    home, the trainer waits    lend iff that scores better than to stay

Both lends must be better by a share of what the swings cost. Symbols, reasons and a worked example: docs/predictive.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from pydantic import BaseModel, ConfigDict, Field

from bus.events import Value
from policies.forecast import Situation, give_back, lend, stay
from policies.lengths import Lengths, estimate
from policies.protocol import Verdict
from policies.situation import hybrid_speed, situation
from policies.view import ScheduleView

FAR_S = 1e9
"""Stands for "never" in evidence."""
NEAR, SELDOM = 1.0, 0.25
"""While lent it looks again at each sample, when so many (in a step's samples) are lacking to the return foreseen; before that, at every
so many."""
AHEAD = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0)
"""While lent: returns that are compared, in steps' samples from now; the first one is one sample from now."""
APART = 0.5
"""At other times: returns this far apart."""
MOST_RETURNS = 16


class PredictiveParams(BaseModel):
    """Settings of `predictive`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    urgency: float = Field(default=1.15, ge=0, le=10)
    """Price of work that is left over when a cycle ends; 1: what it costs to do it with all replicas generating, swings not counted."""
    doubt: float = Field(default=1.5, ge=0, le=10)
    """Standard deviations of a forecast's waiting time that are reckoned with, 1: as lengths that are drawn independently have it."""
    margin: float = Field(default=0.1, ge=0, le=10)
    """Share of the swings' seconds by which a lend at a boundary must be better than none."""
    margin_in_cycle: float = Field(default=0.4, ge=0, le=10)
    """The same for one in mid-cycle."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best lend, and the numbers behind it."""

    give_back_at: int
    gain_s: float
    """By how much it scores better than the other thing that could be done: to stay, or to give back now."""
    swing_s: float
    evidence: dict[str, float]


class Predictive:
    """See the module."""

    def __init__(self, params: PredictiveParams) -> None:
        self._params = params
        self._speed = 1.0
        """Of a hybrid's place, in terms of a standalone one. Renewed at boundaries, as the spread of the lengths is."""
        self._sd_log: float | None = None

    @property
    def name(self) -> str:
        return "predictive"

    @property
    def params(self) -> dict[str, Value]:
        return self._params.model_dump()

    def verdict(self, view: ScheduleView) -> Verdict:
        lengths = _known(view, self._sd_log)
        if lengths is None:
            return _explore(view)
        found = self._compare(view, lengths, lent=False)
        if found.gain_s > self._params.margin * found.swing_s:
            return Verdict("rollout", found.give_back_at, "ends_sooner", found.evidence)
        return Verdict("train", 0, "no_gain", found.evidence)

    def give_back_at(self, view: ScheduleView) -> int:
        lengths = _known(view, self._sd_log)
        if lengths is None:
            return view.shape.required_samples
        return self._compare(view, lengths, lent=view.swings.holder == "lent").give_back_at

    def decided(self, view: ScheduleView) -> None:
        lengths = _known(view, None)
        if lengths is not None:
            self._speed, self._sd_log = hybrid_speed(view.in_flight, lengths), lengths.sd_log

    def lent(self, view: ScheduleView) -> None:
        """Nothing to remember: what counts is in the view."""

    def rebalance(self, view: ScheduleView) -> bool:
        return False

    def extra(self, view: ScheduleView) -> Verdict | None:
        if not view.moment or view.swings.running is not None:
            return None
        running = view.swings.lend
        if running is None:
            return self._while_waiting(view) if view.moment == "waits" else None
        # What the controller lent by itself, because nobody else could generate, no verdict shortens.
        return self._while_lent(view, running.give_back_at) if view.moment == "ready" and running.reason == "verdict" else None

    def _while_lent(self, view: ScheduleView, give_back_at: int) -> Verdict | None:
        ready, step = len(view.books.ready), view.shape.required_samples
        near = give_back_at - ready <= step * NEAR or ready % max(1, floor(step * SELDOM)) == 0
        if ready >= give_back_at or not near:
            return None
        lengths = _known(view, self._sd_log)
        if lengths is None:
            return None
        found = self._compare(view, lengths, lent=True)
        if found.gain_s <= 0:
            return Verdict("train", ready, "rest_in_time", found.evidence)
        if ready + 1 >= give_back_at and found.give_back_at > give_back_at:
            return Verdict("rollout", found.give_back_at, "too_early", found.evidence)
        return None

    def _while_waiting(self, view: ScheduleView) -> Verdict | None:
        lengths = _known(view, self._sd_log)
        if lengths is None:
            return None
        found = self._compare(view, lengths, lent=False)
        if found.gain_s > self._params.margin_in_cycle * found.swing_s:
            return Verdict("rollout", found.give_back_at, "trainer_waits", found.evidence)
        return None

    def _compare(self, view: ScheduleView, lengths: Lengths, lent: bool) -> Comparison:
        start = situation(view, lengths, self._speed, lent)
        now, doubt = start.now, self._params.doubt
        price = self._price(view, now)
        ever = lend(now)
        outcomes = [give_back(ever, count, doubt) for count in _counts(now, len(ever.done), lent)]
        other = give_back(ever, floor(now.ready), doubt) if lent else stay(now, doubt)
        best = min(outcomes, key=lambda outcome: outcome.score(price), default=other)
        other_s, best_s = other.score(price), best.score(price)
        evidence = {
            "ready": float(len(view.books.ready)), "in_flight": float(len(view.in_flight.jobs)),
            "sample_s": lengths.mean_s, "sample_sd_log": lengths.sd_log, "hybrid_speed": self._speed,
            "step_s": now.step_s, "lend_s": now.lend_s, "return_s": now.return_s, "price": price,
            "now_s" if lent else "stay_s": min(other_s, FAR_S), "wait_s": min(other.wait_s, FAR_S), "best_wait_s": min(best.wait_s, FAR_S),
        }  # fmt: skip
        evidence |= {f"lend_{outcome.give_back_at * start.scale}_s": min(outcome.score(price), FAR_S) for outcome in outcomes}
        gain = min(other_s, FAR_S) - min(best_s, FAR_S)
        return Comparison(best.give_back_at * start.scale, gain, now.lend_s + now.return_s, evidence)

    def _price(self, view: ScheduleView, now: Situation) -> float:
        """Seconds that a second of work left over costs the cycles to come; there are none after the last one."""
        plan = view.books.plan
        assert plan is not None
        rate = now.standalone_places + now.hybrid_places * now.hybrid_speed
        return 0.0 if plan.total_steps - view.books.steps_done <= now.steps or not rate else self._params.urgency / rate


def _known(view: ScheduleView, sd_log: float | None) -> Lengths | None:
    """The lengths, once enough has been seen to predict anything."""
    return estimate(view.in_flight, sd_log) if view.step_s else None


def _explore(view: ScheduleView) -> Verdict:
    """Too little is known to predict. A trainer that has no batch loses nothing by a lend until there is one."""
    need, ready = view.shape.required_samples, len(view.books.ready)
    evidence = {"ready": float(ready), "need": float(need)}
    return Verdict("rollout", need, "explores", evidence) if ready < need else Verdict("train", 0, "unknown", evidence)


def _counts(now: Situation, unready: int, lent: bool) -> list[int]:
    """Numbers of ready samples at which the devices could go back."""
    first, most = floor(now.ready) + 1, floor(now.ready) + unready
    if lent:
        counts = {first + round(steps * now.step_samples) for steps in AHEAD}
    else:
        apart = max(APART * now.step_samples, unready / MOST_RETURNS)
        counts = {round(apart * number) for number in range(1, 4 * MOST_RETURNS)}
    return sorted(count for count in counts if first <= count <= most)[:MOST_RETURNS]
