"""What a difference says, and what a verification reads its way through: shadows, swaps, lags, other code, a recording that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from bus.entry import Draft, Entry
from bus.events import BatchFormed, PolicyAttached, ServiceStarted, SwitchRequested
from bus.memory_log import MemoryStore
from bus.recorder import Recorder
from replay.core_check import same
from replay.differences import MOST_STATES, field_differences
from replay.follow import T
from replay.lookahead import Outline, with_answers
from replay.recorded import verify_recording
from replay.subjects import subjects
from replay.verify import verify
from tests.cases.runs import run_plan, small_plan
from tests.replay.recordings import change_body, check, execute, forge_chain, of_this_checkout, positions, save, simulated_with
from tests.simulation.check import subjects_of, verify_log
from tests.simulation.plans import Faults
from tests.simulation.services import CODE, OTHER_CODE
from tests.simulation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("TrainGranted", "BatchFormed", "SwitchDone", "SwitchRequested", crashes=False)


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path, world.store)


def verdict(**changes: object) -> SwitchRequested:
    fields = {
        "target": "rollout",
        "answers": 0,
        "amends": None,
        "give_back_at": 4,
        "max_lent_s": 0.0,
        "reason": "r",
        "evidence": {"a": 1.0},
    }
    return SwitchRequested.model_validate({**fields, **changes})


# --- a difference ---------------------------------------------------------------------------------------------------------------


def test_a_field_by_field_diff_names_only_what_differs_at_any_depth() -> None:
    recorded = BatchFormed(step=1, samples=(1, 2, 3), micro_batches=((0, 1), (2,)))
    expected = BatchFormed(step=1, samples=(1, 7, 3), micro_batches=((0,), (2,)))
    found = [(field.path, field.recorded, field.expected) for field in field_differences(recorded, expected)]
    assert found == [("samples[1]", "2", "7"), ("micro_batches[0]", "(0, 1)", "(0,)")]
    one, other = verdict(evidence={"a": 1.0, "b": 2.0}), verdict(evidence={"a": 1.5, "c": 2.0})
    found = [(field.path, field.recorded, field.expected) for field in field_differences(one, other)]
    assert found == [("evidence.a", "1.0", "1.5"), ("evidence.b", "2.0", ""), ("evidence.c", "", "2.0")]
    assert field_differences(recorded, verdict()) == ()


def test_evidence_is_compared_to_nine_digits_and_everything_else_exactly() -> None:
    assert same(verdict(evidence={"a": 1.0}), verdict(evidence={"a": 1.0 + 1e-12}))
    assert not same(verdict(evidence={"a": 1.0}), verdict(evidence={"a": 1.0 + 1e-6}))
    assert not same(verdict(evidence={"a": 1.0}), verdict(evidence={"a": 1.0, "b": 0.0}))
    assert not same(verdict(max_lent_s=1.0), verdict(max_lent_s=1.0 + 1e-12))


def test_a_difference_carries_its_place_both_codes_and_the_state_before_it(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "BatchFormed")[0]
    change_body(folder, position, lambda body: body.update(step=9))
    found = [difference for difference in check(folder).differences if difference.sort == "decision"]
    moment = found[0].moment
    assert moment is not None
    assert (found[0].position, moment.decided_at) == (world.store.entries[position - 1].cause, position)
    assert (moment.epoch, moment.recorded_code, moment.our_code) == (1, CODE, CODE)
    assert any("0 of" in line and "done" in line for line in moment.state), moment.state
    assert [(field.path, field.recorded, field.expected) for field in found[0].fields] == [("step", "9", "1")]
    with_state = [difference for difference in found if difference.moment is not None and difference.moment.state]
    assert len(with_state) <= MOST_STATES


def test_it_goes_on_after_a_difference_and_counts_all_of_them(folder: Path, world: World) -> None:
    places = positions(world.store.entries, "WaitSamples", "TrainGranted", "PromptsExhausted", "SampleMoved")
    for position in places:
        execute(folder, "UPDATE entries SET epoch = epoch + 7 WHERE position = ?", position)
    report = check(folder)
    assert report.num_differences == len(report.differences)
    assert sum("a decision of epoch" in difference.what for difference in report.differences) == len(places)


def test_differences_over_the_most_that_are_kept_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.differences.MOST_KEPT", 5)
    execute(folder, "UPDATE entries SET at = at + 1")
    report = check(folder)
    assert len(report.differences) == 5
    assert report.num_differences == report.entries
    assert not report.passed


def test_a_decision_without_a_cause_is_found(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "TrainGranted")[0]
    execute(folder, "UPDATE entries SET cause = 0 WHERE position = ?", position)
    forge_chain(folder)
    assert any(difference.what == "it is a decision without a cause" for difference in check(folder).differences)


# --- what is read through -------------------------------------------------------------------------------------------------------


def test_epochs_may_skip_for_a_restored_log_fences_out_the_lost_one(world: World) -> None:
    raised = MemoryStore(world.store.run)
    for position, source, epoch, derived, cause, at, _, event in world.store.entries:
        assert raised.write(source, epoch + 3 if source == "trainer" else epoch, [Draft(event, derived, cause, at)]) == position
    assert verify_log(raised.entries).passed
    lower = [entry._replace(epoch=1) if isinstance(entry.event, ServiceStarted) else entry for entry in raised.entries]
    assert not verify_log(lower).passed


def test_shadows_are_verified_beside_the_active_policy() -> None:
    world = World(3, small_plan(), Faults())
    world.watch_by("fixed_ratio")
    world.watch_by("default")
    world.run()
    entries = world.store.entries
    watching = subjects_of(Outline.of(entries).attached)
    assert [subject.source for subject in watching[-2:]] == ["policy:fixed_ratio", "policy:default"]
    report = verify(entries, watching, entries[-1].chain)
    assert report.passed, report.differences[0]
    assert report.decisions == sum(entry.derived for entry in entries)
    index = next(index for index, entry in enumerate(entries) if entry.event.kind == "ShadowVerdict")
    forged = entries[index].event.model_copy(update={"give_back_at": 77})
    report = verify([*entries[:index], entries[index]._replace(event=forged), *entries[index + 1 :]], watching)
    (found,) = [difference for difference in report.differences if difference.sort == "decision"]
    assert (found.source, found.fields[0].path) == (entries[index].source, "give_back_at")


def test_the_shadows_of_a_recording_are_found_by_their_source() -> None:
    attached = PolicyAttached(name="default", params={}, mode="shadow", code="")
    *_, shadow = subjects([("policy", attached), ("policy:default", attached), ("policy:default", attached)])
    assert len(subjects([("policy:default", attached)])) == 5
    assert (shadow.source, shadow.make(attached).source) == ("policy:default", "policy:default")


def test_a_policy_that_comes_back_after_another_has_the_state_that_the_whole_log_gives_it() -> None:
    """Three incarnations, the third of the first one's kind: each decides as after a rebuild."""
    for seed in range(200):
        world = World(seed, small_plan(num_prompts=None, total_steps=8), Faults(swap_policy=0.02))
        world.run()
        names = [entry.event.name for entry in world.store.entries if isinstance(entry.event, PolicyAttached)]
        if any(names[index] == names[index + 2] != names[index + 1] for index in range(len(names) - 2)):
            assert verify_log(world.store.entries).passed
            return
    raise AssertionError("no such run")


def test_a_recording_that_grows_while_it_is_verified_passes_as_far_as_it_was(tmp_path: Path, world: World) -> None:
    entries = world.store.entries
    half = len(entries) // 2
    with Recorder.open(tmp_path, world.store.run, world.store.log_id) as recorder:
        recorder.append(entries[:half])

        def grow(items: Iterable[T], what: str, total: int, place: Callable[[T], int]) -> Iterable[T]:
            if recorder.last_position == half:
                recorder.append(entries[half:])
            yield from items

        report = verify_recording(tmp_path, subjects_of, grow)
    assert report.passed, report.differences[0]
    assert report.entries == half


def test_incarnations_of_other_code_are_listed_with_what_they_would_have_done_differently() -> None:
    def other(world: World) -> int:
        starts = [entry.event for entry in world.store.entries if isinstance(entry.event, ServiceStarted | PolicyAttached)]
        return sum(event.code == OTHER_CODE for event in starts)

    for seed in range(100):
        world = World(seed)
        world.run()
        report = verify_log(world.store.entries)
        assert len(report.other_incarnations) == other(world)
        assert sum(incarnation.num_differences for incarnation in report.other_incarnations) == report.num_other_code
        if report.num_other_code:
            assert {difference.moment is not None and difference.moment.recorded_code for difference in report.other_code} == {OTHER_CODE}
            return
    raise AssertionError("no run had other code that decides otherwise")


def test_the_code_of_this_checkout_verifies_its_own_runs(tmp_path: Path, world: World) -> None:
    report = verify_recording(save(tmp_path, of_this_checkout(world)), subjects)
    assert report.passed
    assert not report.other_incarnations


# --- looking ahead --------------------------------------------------------------------------------------------------------------


def test_each_entry_comes_with_its_decisions_and_no_more_is_held_than_lies_between() -> None:
    entries = run_plan(small_plan(total_steps=4))
    last_answer = Outline.of(entries).last_answer
    longest = max((last_answer[entry.position] - entry.position for entry in entries), default=0)
    read = 0

    def counted() -> Iterable[Entry]:
        nonlocal read
        for entry in entries:
            read += 1
            yield entry

    seen: list[Entry] = []
    for entry, answers in with_answers(counted(), last_answer):
        assert read - len(seen) - 1 <= longest
        assert [answer.position for answer in answers] == [e.position for e in entries if e.derived and e.cause == entry.position]
        seen.append(entry)
    assert seen == entries


def test_answers_that_are_not_there_any_more_are_not_waited_for() -> None:
    entries = run_plan(small_plan(total_steps=2))
    cut = entries[: len(entries) // 2]
    assert [entry for entry, _ in with_answers(cut, Outline.of(entries).last_answer)] == cut
