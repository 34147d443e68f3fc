"""Curves of a run beside those of the same steps trained with other settings, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, isfinite

from rich.table import Table

from replay.train_report import Step

CURVES = {
    "actor/loss": "loss",
    "rollout/mean_reward": "reward",
    "actor/kl": "KL to initial",
    "actor/ppo_kl": "KL to sampling",
    "actor/grad_norm": "gradient norm",
    "actor/entropy": "entropy",
    "actor/clip_fraction": "clipped",
    "actor/lr": "learning rate",
}
"""What is shown, if it was measured."""
BARS = "▁▂▃▄▅▆▇█"
WIDEST = 40
OTHERS = 68
"""Characters of the other columns."""


def curves_table(steps: Sequence[Step], width: int) -> Table:
    """`width`: of the terminal. A row a measure: its mean and course then and now, on one scale, and the step that differs most."""
    bars = min(WIDEST, max(4, (width - OTHERS) // 2))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "recorded", "now", "recorded", "now", "differs most"):
        table.add_column(name, no_wrap=True, justify="left")
    for metric, label in CURVES.items():
        pairs = [(step.step, step.recorded[metric], step.now[metric]) for step in steps if metric in step.recorded and metric in step.now]
        if pairs:
            then, now = [recorded for _, recorded, _ in pairs], [value for _, _, value in pairs]
            table.add_row(label, _mean(then), _mean(now), *sparklines(then, now, bars), _greatest(pairs))
    return table


def sparklines(left: Sequence[float], right: Sequence[float], width: int) -> tuple[str, str]:
    """Both as bars of at most `width` characters on a common scale; what is not finite is a blank."""
    numbers = [number for number in (*left, *right) if isfinite(number)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    return _sparkline(left, low, high, width), _sparkline(right, low, high, width)


def _sparkline(numbers: Sequence[float], low: float, high: float, width: int) -> str:
    return "".join(_bar(_average(part), low, high) for part in _parts(numbers, width))


def _parts(numbers: Sequence[float], width: int) -> list[Sequence[float]]:
    """At most `width` runs of about equal length."""
    count = min(width, len(numbers))
    edges = [len(numbers) * index // count for index in range(count + 1)] if count else [0]
    return [numbers[first:last] for first, last in pairwise(edges)]


def _average(numbers: Sequence[float]) -> float:
    finite = [number for number in numbers if isfinite(number)]
    return fsum(finite) / len(finite) if finite else float("nan")


def _bar(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def _mean(numbers: Sequence[float]) -> str:
    return f"{_average(numbers):.4g}"


def _greatest(pairs: Sequence[tuple[int, float, float]]) -> str:
    step, then, now = max(pairs, key=lambda pair: abs(pair[2] - pair[1]) if isfinite(pair[2] - pair[1]) else float("inf"))
    return "none" if then == now else f"{now - then:+.4g} in step {step}"
