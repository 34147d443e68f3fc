"""C-20, C-21: samples that are too old."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bus.entry import Entry
from bus.events import BatchFormed, RunEnded, RunPlanned, SampleDropped, SampleReady, SampleStarted, StepDone, WeightsPublished
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.simulation.plans import Faults


def lags(entries: Sequence[Entry]) -> list[int]:
    """Versions between the oldest weights in each trained sample and those that it trained."""
    version, found = -1, list[int]()
    oldest: dict[int, int] = {}
    for entry in entries:
        match entry.event:
            case WeightsPublished():
                version = entry.event.version
            case SampleReady():
                oldest.setdefault(entry.event.sample, entry.event.oldest_version)
            case BatchFormed():
                found += [version - oldest[sample] for sample in entry.event.samples]
            case _:
                pass
    return found


def aging_plan(**changes: object) -> RunPlanned:
    """Half a cycle more than is trained in one may be outstanding, so that samples get old while they wait."""
    return small_plan(total_steps=10, staleness_threshold=1.0, policy="static_fully_async", **changes)


@pytest.mark.parametrize("seed", range(10))
def test_samples_get_old_without_a_limit(seed: int) -> None:
    assert max(lags(run_plan(aging_plan(), seed))) >= 1


@pytest.mark.parametrize("seed", range(10))
def test_c20_stale_samples_are_replaced_and_no_batch_is_short(seed: int) -> None:
    entries = run_plan(aging_plan(max_version_lag=0), seed)
    drops = [drop for drop in of_kind(entries, SampleDropped) if drop.reason == "stale"]
    assert drops, "nothing got too old"
    assert "version" in drops[0].detail
    assert max(lags(entries)) == 0
    assert {len(batch.samples) for batch in of_kind(entries, BatchFormed)} == {2}
    assert of_kind(entries, RunEnded)[0].reason == "completed"
    assert len(of_kind(entries, SampleStarted)) >= 20 + len(drops)


def test_c20_when_all_that_is_left_is_stale_the_run_ends_with_what_was_trained() -> None:
    """No prompt is left to refill from: the last samples are dropped one by one, and never padded."""
    entries = run_plan(aging_plan(max_version_lag=0, num_prompts=9))
    assert of_kind(entries, RunEnded)[0].reason == "prompts_exhausted"
    trained = sum(step.num_samples for step in of_kind(entries, StepDone))
    assert trained + len(of_kind(entries, SampleDropped)) == 9
    assert all(batch.samples for batch in of_kind(entries, BatchFormed))


@pytest.mark.parametrize("seed", range(10))
def test_waiting_keeps_the_limit_without_dropping_anything(seed: int) -> None:
    entries = run_plan(
        aging_plan(max_version_lag=1, on_version_lag="wait", hybrid=("h0", "h1")), seed, Faults(crashes=3, crash_chance=0.02)
    )
    assert not of_kind(entries, SampleDropped)
    assert max(lags(entries)) <= 1
    assert of_kind(entries, RunEnded)[0].reason == "completed"


@pytest.mark.parametrize("seed", range(5))
def test_c21_the_unit_of_dropping_is_the_sample_with_all_its_answers_and_nothing_else(seed: int) -> None:
    entries = run_plan(aging_plan(max_version_lag=0, rollout_n=3), seed)
    dropped = {drop.sample for drop in of_kind(entries, SampleDropped)}
    trained = [sample for batch in of_kind(entries, BatchFormed) for sample in batch.samples]
    assert dropped
    assert not dropped & set(trained)
    neighbours = {sample + step for sample in dropped for step in (-1, 1)} - dropped
    assert neighbours & set(trained), "the samples beside a dropped one were lost with it"
