"""The key numbers of a run, and how those of two runs differ. Which direction is better is stated, where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal

from services.monitor.summary import Summary
from services.monitor.training import quarter

Better = Literal["lower", "higher", ""]
Unit = Literal["s", "%", "", "tokens"]
SMALLEST_CHANGE = 0.0005
"""Relative differences below it are none."""
SMALLEST_JUDGED = 0.02
"""Relative differences up to it are neither better nor worse: two runs of one plan differ as much."""
MOST_PERCENT = 1000
"""More than that says nothing that the difference itself does not say."""


@dataclass(frozen=True, slots=True)
class Number:
    """One line of the table. A value is None where the run has none."""

    group: str
    label: str
    value: float | None
    unit: Unit = ""
    better: Better = ""
    digits: int = 0
    hint: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return "–" if self.value is None else number_text(self.value, self.unit, self.digits)


@dataclass(frozen=True, slots=True)
class Change:
    """What a number is more or less than that of the first run."""

    text: str = ""
    judgement: Literal["better", "worse", ""] = ""


def number_text(value: float, unit: Unit = "", digits: int = 0) -> str:
    """With unit, thousands apart."""
    if unit == "%":
        return f"{100 * value:.{digits}f} %"
    if unit == "s":
        return seconds_text(value, digits)
    return f"{value:,.{digits}f}"


def seconds_text(seconds: float, digits: int = 2) -> str:
    """Seconds up to two minutes; then minutes, then hours."""
    if abs(seconds) < 120:
        return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "−" if seconds < 0 else ""
    return f"{sign}{hours} h {minutes:02} min" if hours else f"{sign}{minutes} min {rest:02} s"


def key_numbers(summary: Summary) -> list[Number]:
    """All of them, always the same lines in the same order."""
    return [*_time(summary), *_use(summary), *_learning(summary), *_lending(summary), *_trouble(summary)]


def _time(summary: Summary) -> list[Number]:
    group, steps, wall = "Time", summary.books.steps_done, summary.wall_s
    waited = fsum(summary.training.waits_s)
    return [
        Number(group, "steps done", steps, better="higher"),
        Number(group, "time", wall if summary.opened else None, "s", "lower", 2, "from the opening of boundary 0 to the end"),
        Number(group, "time a step", wall / steps if steps else None, "s", "lower", 3),
        Number(group, "waited for samples", waited if steps else None, "s", "lower", 2, "devices home, granted, and no batch to train on"),
        Number(group, "waited, share of the time", waited / wall if wall > 0 and steps else None, "%", "lower", 1),
        Number(group, "start-up", None if summary.opened_at is None else summary.opened_at / 1e9, "s", digits=2),
    ]


def _use(summary: Summary) -> list[Number]:
    group, totals, syncs = "Use of the devices", summary.totals(), summary.syncs
    held, wall = totals.held, summary.wall_s
    return [
        Number(group, "all devices busy", totals.utilization, "%", "higher", 1, "training, or generating by the share of slots taken"),
        Number(group, "trainer's devices busy at home", totals.train_utilization, "%", "higher", 1),
        Number(group, "open slots generating", totals.rollout_utilization, "%", "higher", 1),
        Number(group, "tokens generated", summary.tokens_generated, "tokens"),
        Number(group, "weights read, MB", syncs.num_bytes / 1e6 if syncs.by_transport else None, better="lower", digits=1),
        Number(group, "weights read, share of the whole", syncs.num_bytes / syncs.full_bytes if syncs.full_bytes else None, "%", digits=1),
        Number(group, "tokens a second", summary.tokens_generated / wall if wall > 0 else None, "tokens", "higher"),
        Number(
            group, "trained tokens a device-second", summary.training.tokens / held if held > 0 else None, "tokens", "higher",
            hint="what all devices together are for",
        ),
    ]  # fmt: skip


def _learning(summary: Summary) -> list[Number]:
    group, books, rewards = "Learning", summary.books, summary.training.rewards
    staleness = summary.training.staleness_of_trained()
    return [
        Number(group, "reward, first quarter", quarter(rewards, last=False), digits=3),
        Number(group, "reward, last quarter", quarter(rewards, last=True), better="higher", digits=3),
        Number(group, "samples trained", books.trained),
        Number(group, "samples dropped", sum(books.dropped.values()), better="lower"),
        Number(group, "staleness, mean", staleness.mean if staleness else None, better="lower", digits=2, hint="in versions"),
        Number(group, "staleness, largest", staleness.largest if staleness else None, better="lower"),
    ]


def _lending(summary: Summary) -> list[Number]:
    group, swings, wall = "Lending", summary.swings, summary.wall_s
    lent = fsum(swing.lent_seconds or 0.0 for swing in swings.all)
    rate = summary.standalone_tokens_per_s
    gain = swings.lent_tokens / rate if rate else None
    return [
        Number(group, "swings", sum(swing.outcome == "done" for swing in swings.all)),
        Number(group, "swings cost", swings.seconds, "s", digits=2),
        Number(group, "swings cost, share of the time", swings.seconds / wall if wall > 0 else None, "%", digits=1),
        Number(group, "devices lent, share of the time", lent / wall if wall > 0 else None, "%", digits=1),
        Number(group, "tokens of lent devices", swings.lent_tokens, "tokens"),
        Number(group, "time the others need for them", gain, "s", digits=2, hint="at the standalone replicas' rate in this run"),
    ]


def _trouble(summary: Summary) -> list[Number]:
    group = "Trouble"
    return [
        Number(group, "services lost", summary.services_lost, better="lower"),
        Number(group, "replicas lost", summary.replicas.lost, better="lower"),
        Number(group, "deadlines missed", summary.deadlines_missed, better="lower"),
    ]


def change(first: Number, other: Number) -> Change:
    """`other` against `first`: the difference, and in percent where that says something."""
    if first.value is None or other.value is None:
        return Change()
    difference = other.value - first.value
    if difference == 0 or abs(difference) <= SMALLEST_CHANGE * abs(first.value):
        return Change("=")
    sign, size = ("+" if difference > 0 else "−"), abs(difference)
    if first.unit == "%":
        text = f"{sign}{100 * size:.{first.digits}f} points"
    else:
        text = f"{sign}{number_text(size, first.unit, first.digits)}"
        if (first.unit or first.digits) and 0 < size <= MOST_PERCENT / 100 * abs(first.value):
            text += f" ({sign}{100 * size / abs(first.value):.1f} %)"
    telling = size > SMALLEST_JUDGED * abs(first.value)
    return Change(text, _judge(difference, first.better) if telling else "")


def _judge(difference: float, better: Better) -> Literal["better", "worse", ""]:
    if not better:
        return ""
    return "better" if (difference < 0) == (better == "lower") else "worse"


def verdict(summary: Summary) -> str:
    """Did lending pay, by this run's own measure?

    The time that others would have needed is a bound: while the devices were away, the trainer could not train on what was ready.
    """
    plan, swings = summary.books.plan, summary.swings
    lends = [swing for swing in swings.all if swing.target == "rollout" and swing.outcome == "done"]
    waited = f"The trainer waited {seconds_text(fsum(summary.training.waits_s))} for samples"
    waited += f", {100 * fsum(summary.training.waits_s) / summary.wall_s:.1f} % of the time." if summary.wall_s > 0 else "."
    if plan is None or not summary.opened:
        return "The run did not get as far as its first boundary."
    if not plan.hybrid:
        return f"No replica shares the trainer's devices, so nothing could be lent. {waited}"
    if not lends:
        return f"The devices were never lent. {waited}"
    share = swings.lent_tokens / summary.tokens_generated if summary.tokens_generated else 0.0
    times = "Once" if len(lends) == 1 else f"{len(lends)} times"
    told = (
        f"{times} the devices were lent. The swings there and back cost {seconds_text(swings.seconds)}; "
        f"the lent devices generated {swings.lent_tokens:,} tokens, {100 * share:.1f} % of all"
    )
    rate = summary.standalone_tokens_per_s
    if not rate:
        return f"{told}. Nobody else could generate. {waited}"
    gain = swings.lent_tokens / rate
    net = gain - swings.seconds
    judged = f"it saved {seconds_text(net)} at most" if net > 0 else f"it did not pay: {seconds_text(-net)} more than that"
    return f"{told}. The others would have needed {seconds_text(gain)} for them: {judged}. {waited}"


def comparison(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """Which of the runs was faster, where that can be said: when they did the same number of steps."""
    first = summaries[0]
    told = []
    for name, other in zip(names[1:], summaries[1:], strict=True):
        if first.books.steps_done != other.books.steps_done or not first.books.steps_done or first.wall_s <= 0:
            told.append(
                f"{names[0]} did {first.books.steps_done} steps in {seconds_text(first.wall_s)}, "
                f"{name} {other.books.steps_done} in {seconds_text(other.wall_s)}."
            )
            continue
        ratio = other.wall_s / first.wall_s
        words = "as long" if abs(ratio - 1) < SMALLEST_CHANGE else f"{100 * abs(ratio - 1):.1f} % {'longer' if ratio > 1 else 'less'}"
        told.append(
            f"{name} took {seconds_text(other.wall_s)} for the {other.books.steps_done} steps that {names[0]} did in "
            f"{seconds_text(first.wall_s)}: {words}."
        )
    return " ".join(told)
