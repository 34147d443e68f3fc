"""`swingshift replay ledger`: honest logs balance, whatever was killed in them; each way of losing a sample is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bus.entry import Draft, Entry
from bus.events import BatchFormed, Event, RunEnded, SampleDropped, SampleReady, SampleStarted, StepDone
from bus.memory_log import MemoryStore
from replay.cli import app
from replay.ledger import Ledger
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.replay.recordings import change_body, positions, save
from tests.simulation.plans import Faults
from tests.simulation.world import World

Change = Callable[[Event], Sequence[Event]]


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    """Three cycles in which some samples are dropped."""
    return run_plan(small_plan(num_prompts=15, total_steps=8, max_version_lag=0), seed=3)


def folded(entries: Sequence[Entry]) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        ledger.apply(entry)
    return ledger


def tampered(entries: Sequence[Entry], change: Change) -> Ledger:
    """The ledger of a log in which each event became those that `change` gives."""
    store = MemoryStore.create(small_plan(), 1)
    for _, source, epoch, derived, cause, at, _, event in entries[1:]:
        store.write(source, epoch, [Draft(each, derived, cause, at) for each in change(event)])
    return folded(store.entries)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *(str(argument) for argument in arguments)])


@pytest.mark.parametrize("seed", range(12))
def test_a_run_balances_whatever_was_killed_delayed_or_failed_in_it(seed: int) -> None:
    world = World(seed)
    world.run()
    ledger = folded(world.store.entries)
    assert ledger.balanced, [str(fault) for fault in ledger.faults]
    ends = sum(ledger.count(state) for state in ("trained", "dropped", "ready", "in a batch", "in flight"))
    assert ends == ledger.taken == len(of_kind(world.store.entries, SampleStarted))


def test_the_cycles_add_up_and_lengths_are_told_by_where_samples_ended(entries: list[Entry]) -> None:
    ledger = folded(entries)
    assert sum(cycle.taken for cycle in ledger.cycles) == ledger.taken
    assert sum(cycle.trained for cycle in ledger.cycles) == ledger.trained == ledger.lengths.of_trained.samples
    assert [cycle.version for cycle in ledger.cycles] == list(range(len(ledger.cycles)))
    tokens = {event.sample: event.num_tokens for event in of_kind(entries, SampleReady)}
    trained = [tokens[sample] for batch in of_kind(entries, BatchFormed) for sample in batch.samples]
    assert ledger.lengths.of_trained.mean == pytest.approx(sum(trained) / len(trained))
    dropped = [tokens[event.sample] for event in of_kind(entries, SampleDropped) if event.reason == "stale"]
    assert ledger.dropped.get("stale", 0) == len(dropped)


def test_samples_that_are_filtered_before_they_are_ready_have_the_tokens_of_their_answers() -> None:
    ledger = folded(run_plan(small_plan(), seed=5, faults=Faults(filtered=0.3)))
    spread = ledger.lengths.of_dropped["filtered"]
    assert ledger.balanced
    assert spread.samples == ledger.dropped["filtered"] > 0
    assert spread.mean > 0


def _again(kind: type[Event]) -> Change:
    """The third event of a kind stands twice."""
    count = 0

    def change(event: Event) -> Sequence[Event]:
        nonlocal count
        count += isinstance(event, kind)
        return [event, event] if isinstance(event, kind) and count == 3 else [event]

    return change


def _without(kind: type[Event]) -> Change:
    """The third event of a kind is missing."""
    count = 0

    def change(event: Event) -> Sequence[Event]:
        nonlocal count
        count += isinstance(event, kind)
        return [] if isinstance(event, kind) and count == 3 else [event]

    return change


def _first_batch_again(event: Event) -> Sequence[Event]:
    """A step takes what step 1 took."""
    return [event.model_copy(update={"samples": (0, 1)})] if isinstance(event, BatchFormed) and event.step == 3 else [event]


def _drops_what_is_trained(event: Event) -> Sequence[Event]:
    return [event, SampleDropped(sample=0, reason="stale")] if isinstance(event, StepDone) and event.step == 2 else [event]


def _trains_what_is_dropped(event: Event) -> Sequence[Event]:
    return [SampleDropped(sample=event.samples[0], reason="tail"), event] if isinstance(event, BatchFormed) and event.step == 2 else [event]


def _drops_of_another_owner(event: Event) -> Sequence[Event]:
    return (
        [event, SampleDropped(sample=event.sample, reason="filtered")] if isinstance(event, SampleReady) and event.sample == 4 else [event]
    )


def _counts_more(event: Event) -> Sequence[Event]:
    return [event.model_copy(update={"num_samples": 3})] if isinstance(event, StepDone) and event.step == 2 else [event]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_again(SampleStarted), "sample 2: taken twice: it is in flight since position"),
        (_again(StepDone), "step 3 is done again: 2 samples are counted for it"),
        (_again(BatchFormed), "a batch of step 3 is formed while that of step 3 is not trained"),
        (_without(SampleStarted), "sample 2: ready without having been taken"),
        (_without(SampleStarted), "sample 2: never taken, though later prompts were"),
        (_without(SampleReady), "in the batch of step"),
        (_without(BatchFormed), "step 3 is done without a batch"),
        (_first_batch_again, "sample 0: in the batch of step 3, but it is trained by step 1 since position"),
        (_drops_what_is_trained, "sample 0: dropped (stale), but it is trained by step 1 since position"),
        (_trains_what_is_dropped, "in the batch of step 2, but it is dropped since position"),
        (_drops_of_another_owner, "sample 4: dropped (filtered), but it is ready since position"),
        (_counts_more, "step 2 says 3 samples, its batch has 2"),
    ],
)
def test_each_way_of_losing_or_doubling_a_sample_is_named(change: Change, words: str) -> None:
    ledger = tampered(run_plan(small_plan(), seed=1), change)
    assert not ledger.balanced
    assert any(words in str(fault) for fault in ledger.faults), [str(fault) for fault in ledger.faults]


def test_an_outcome_that_stands_twice_is_counted_once() -> None:
    ledger = tampered(run_plan(small_plan(), seed=1), _again(SampleReady))
    assert ledger.balanced
    assert ledger.repeated == 1


def test_a_sample_that_vanished_before_the_prompts_were_exhausted_is_named(entries: list[Entry]) -> None:
    assert of_kind(entries, RunEnded)[0].reason == "prompts_exhausted"
    last = max(event.sample for event in of_kind(entries, SampleStarted))

    def lose(event: Event) -> Sequence[Event]:
        return [] if isinstance(event, SampleReady | SampleDropped) and event.sample == last else [event]

    found = [str(fault) for fault in tampered(entries, lose).faults]
    assert any(f"sample {last}: vanished: the prompts are exhausted, and it is in flight" in fault for fault in found), found


def test_books_of_the_cores_that_say_something_else_are_a_fault(entries: list[Entry]) -> None:
    """A drop that no core can mean: the sample's place is counted once here, and not at all there."""
    ledger = folded(entries)
    ledger.trained += 1
    assert any("prompts were taken" in fault.what for fault in ledger.faults)
    assert any("the cores count" in fault.what for fault in ledger.faults)


def test_the_command_prints_the_books_and_ends_with_0_or_1(tmp_path: Path, entries: list[Entry]) -> None:
    store = MemoryStore("case", entries=list(entries))
    save(tmp_path, store)
    good = invoke(tmp_path)
    assert good.exit_code == 0, good.output
    ledger = folded(entries)
    assert f"each of the {ledger.taken} prompts taken is accounted for once" in good.output
    assert "of 15 in the plan" in good.output
    told = json.loads(invoke(tmp_path, "--json").output)
    assert told == json.loads(json.dumps(ledger.as_dict()))
    assert told["balanced"]
    change_body(tmp_path, positions(entries, "BatchFormed")[2], lambda body: body.update(samples=[0, 1]))
    bad = invoke(tmp_path)
    assert bad.exit_code == 1
    assert "sample 0: in the batch of step 3, but it is trained by step 1" in bad.output
    assert "FAILED: " in bad.output
    as_json = invoke(tmp_path, "--json")
    assert as_json.exit_code == 1
    assert {"position", "sample", "what"} == set(json.loads(as_json.output)["faults"][0])


def test_a_folder_that_is_no_recording_is_told(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    assert result.exit_code == 2
    assert "is no recording" in result.output
