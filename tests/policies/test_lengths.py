"""Lengths of samples, estimated from a log, and the normal distribution below them."""

from __future__ import annotations

from math import exp, log
from random import Random
from statistics import NormalDist, fmean

import pytest

from bus.events import ReplicaAdded, SampleStarted
from policies.in_flight import InFlight
from policies.lengths import FRESH, LEAST_FINISHED, Lengths, estimate, spread
from policies.normal import above, exceeded_with, mean_above, positive_part
from tests.policies.logs import Story, plan, ready

PLACES = 32


def run_of(lengths: list[float], until_s: float) -> InFlight:
    """A replica with 32 places works on samples of these lengths, one after the other, until a moment."""
    flight = InFlight()
    story = Story(plan(rollout_n=1), flight.apply)
    story.write(ReplicaAdded(replica="s0", role="standalone", slots=PLACES, seconds=1.0), "replica:s0")
    ends: list[tuple[float, int]] = []
    for sample in range(PLACES):
        story.write(SampleStarted(sample=sample, version=0))
        ends.append((lengths[sample], sample))
    now, following = 0.0, PLACES
    while ends and min(ends)[0] <= until_s:
        end, sample = min(ends)
        ends.remove((end, sample))
        story.pass_seconds(end - now)
        now = end
        story.write(ready(sample))
        story.write(SampleStarted(sample=following, version=0))
        ends.append((end + lengths[following], following))
        following += 1
    story.pass_seconds(until_s - now)
    story.write(SampleStarted(sample=following, version=0))
    return flight


def drawn(mean: float, sd: float, count: int, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [exp(random.gauss(log(mean), sd)) for _ in range(count)]


@pytest.mark.parametrize("z", [-4.0, -1.0, 0.0, 0.3, 2.0, 5.0])
def test_the_normal_distribution_is_that_of_the_standard_library(z: float) -> None:
    assert above(z) == pytest.approx(1 - NormalDist().cdf(z), rel=1e-9)
    assert exceeded_with(above(z)) == pytest.approx(z, abs=1e-6)


def test_the_mean_of_what_is_above_and_of_the_positive_part() -> None:
    draws = NormalDist(0.5, 2.0).samples(200_000, seed=1)
    assert positive_part(0.5, 2.0) == pytest.approx(fmean(max(0.0, x) for x in draws), rel=0.01)
    assert 0.5 + 2.0 * mean_above(0.25) == pytest.approx(fmean(x for x in draws if x > 1.0), rel=0.01)
    assert mean_above(5.999) == pytest.approx(mean_above(6.001), rel=0.001)
    assert positive_part(-1.0, 0.0) == 0.0


def test_the_numbers_of_successive_samples_are_spread_evenly() -> None:
    assert [spread(number) for number in range(4)] == [1 / 512, 257 / 512, 129 / 512, 385 / 512]
    assert fmean(FRESH[:64]) == pytest.approx(0.0, abs=0.05)


def test_nothing_is_known_of_lengths_before_some_samples_have_finished() -> None:
    flight = run_of([10.0] * 100, 9.0)
    assert estimate(flight) is None
    assert len(run_of([10.0] * 200, 10.0).finished) >= LEAST_FINISHED
    assert estimate(run_of([10.0] * 200, 10.0)) is not None


def test_lengths_are_estimated_though_the_long_samples_have_not_finished() -> None:
    found = estimate(run_of(drawn(100, 0.5, 600), 1000.0))
    assert found is not None
    assert found.mean_log == pytest.approx(log(100), abs=0.12)
    assert found.sd_log == pytest.approx(0.5, abs=0.08)


def test_samples_that_became_longer_show_before_they_have_finished() -> None:
    """Of the long ones, that take 300 s, none has finished."""
    lengths = drawn(100, 0.1, 200) + [300.0] * 200
    before, after = estimate(run_of(lengths, 590.0)), estimate(run_of(lengths, 850.0))
    assert before is not None
    assert after is not None
    assert after.mean_log > before.mean_log + 0.2


def test_a_level_that_changes_is_not_taken_for_spread() -> None:
    found = estimate(run_of(drawn(50, 0.2, 250) + drawn(150, 0.2, 350, seed=2), 1500.0))
    assert found is not None
    assert found.sd_log < 0.35


def test_what_is_to_go_is_that_of_samples_longer_than_what_was_worked() -> None:
    lengths = Lengths(log(100), 0.5)
    assert lengths.remaining_s(0, 0.0) == lengths.fresh_s(0)
    whole = [lengths.remaining_s(sample, 150.0) + 150.0 for sample in range(256)]
    assert min(whole) >= 150.0
    assert fmean(map(log, whole)) == pytest.approx(log(100) + 0.5 * mean_above((log(150) - log(100)) / 0.5), abs=0.01)


def test_the_hazard_counts_the_ends_to_be_expected() -> None:
    lengths = Lengths(log(100), 0.5)
    assert lengths.hazard(100.0) == pytest.approx(log(2))
    assert lengths.hazard(0.0) == pytest.approx(0.0)
    assert lengths.mean_s == pytest.approx(exp(log(100) + 0.125))
