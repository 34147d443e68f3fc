"""The memory budget: when a run is paused, when it goes on, when it ends, and that a pause never lasts for ever."""

from __future__ import annotations

from itertools import count

import pytest

from bus.blobs import blob_ref
from bus.entry import Draft, Entry, Producer
from bus.events import BatchFormed, Event, RolloutPaused, RolloutResumed, RunEnded, SampleReady, SampleStarted, SettingChanged, StepDone
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.memory_use import Use
from bus.recording import Row
from services.archiver.brake import Brake, Marks
from services.archiver.janitor import EVERY_S, STILL_S, Janitor
from services.config import RedisConfig
from services.controller.core import ControllerCore
from tests.bus.factories import plan, step_done
from tests.services.archiver.trims import MemoryTrims

MARKS = Marks(resume_at=0.6, pause_at=0.8)


class Story:
    """A brake that reads a log as it is told, at times as they are told."""

    def __init__(self) -> None:
        self.brake = Brake(MARKS, still_s=5.0)
        self.positions = count(1)
        self.now = 0.0
        self.tell(plan("r"))

    def tell(self, *events: Event) -> None:
        for event in events:
            self.brake.apply(Entry(next(self.positions), "x", 1, False, 0, 0, "", event), self.now)

    def says(self, used: int, after_s: float = 0.0) -> Event | None:
        """What the brake says, and has told to it, when the run takes `used` bytes."""
        self.now += after_s
        event = self.brake.decide(used, 100, self.now)
        if event is not None:
            self.tell(event)
        return event


def paused(used: int) -> RolloutPaused:
    return RolloutPaused(reason="memory", used_bytes=used, budget_bytes=100)


def resumed(used: int) -> RolloutResumed:
    return RolloutResumed(reason="memory", used_bytes=used, budget_bytes=100)


def ready(sample: int) -> SampleReady:
    return SampleReady(
        sample=sample, num_tokens=8, oldest_version=0, newest_version=0, mean_reward=0.0, blob=blob_ref(f"sample:{sample}", b"x")
    )


def batch(step: int) -> BatchFormed:
    return BatchFormed(step=step, samples=(0,), micro_batches=((0,),))


def test_a_run_is_paused_at_the_first_mark_and_goes_on_at_a_lower_one() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0))
    assert [story.says(used) for used in (79, 80, 90, 60, 59, 79)] == [None, paused(80), None, None, resumed(59), None]
    assert story.says(85) == paused(85)


def test_a_run_that_takes_its_whole_budget_is_told_so_once_also_when_it_is_paused() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0))
    assert [story.says(used) for used in (80, 99, 100, 120, 10)] == [paused(80), None, paused(100), None, None]
    assert [event.is_over_budget for event in (paused(80), paused(99), paused(100))] == [False, False, True]


def test_a_pause_in_which_nothing_moves_ends_and_the_next_one_comes_when_half_of_the_rest_is_used() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0))
    assert story.says(85) == paused(85)
    assert story.says(85, after_s=60.0) is None  # it is still being generated
    story.tell(ready(0))
    assert story.says(85, after_s=4.0) is None
    assert story.says(85, after_s=2.0) == resumed(85)
    assert story.says(92) is None
    assert story.says(93) == paused(93)
    assert story.says(59) == resumed(59)
    assert story.says(80) == paused(80)


def test_while_entries_wait_for_a_full_disk_nobody_can_tell_that_nothing_moves() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0), ready(0))
    assert story.says(85) == paused(85)
    assert story.brake.decide(85, 100, story.now + 60.0, up_to_date=False) is None
    assert story.brake.decide(85, 100, story.now + 60.0) == resumed(85)


def test_while_a_step_trains_a_pause_goes_on() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0), ready(0), batch(1))
    assert story.says(85) == paused(85)
    assert story.says(85, after_s=600.0) is None
    story.tell(StepDone(**(dict(step_done(1)) | {"step": 1})))
    assert story.says(85, after_s=6.0) == resumed(85)


def test_marks_that_are_changed_on_the_live_run_count_from_then_on() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0))
    assert story.says(75) is None
    story.tell(SettingChanged(name="memory_pause_at", value=0.7))
    assert story.says(75) == paused(75)
    story.tell(SettingChanged(name="memory_resume_at", value=0.2))
    assert [story.says(used) for used in (59, 20, 19)] == [None, None, resumed(19)]
    story.tell(SettingChanged(name="memory_pause_at", value=0.1))
    assert [story.says(used) for used in (19, 10, 9)] == [paused(19), None, resumed(9)], "it resumed above where it pauses"


def test_another_setting_leaves_the_raised_mark_where_a_pause_that_did_not_help_has_put_it() -> None:
    story = Story()
    story.tell(SampleStarted(sample=0, version=0), ready(0))
    assert story.says(85) == paused(85)
    assert story.says(85, after_s=6.0) == resumed(85)
    story.tell(SettingChanged(name="max_lent_s", value=1.0))
    assert [story.says(used) for used in (92, 93)] == [None, paused(93)]


def test_a_budget_that_is_changed_on_the_live_run_is_what_the_janitor_measures_by() -> None:
    store = MemoryStore.create(plan("r"), at=0)
    clock = [0.0]
    settings = RedisConfig(memory_budget=1 << 17, memory_pause_at=0.8, memory_resume_at=0.6)
    janitor = Janitor(MemoryLog(store), MemoryTrims(store), MemoryBlobs(store), lambda: Use(90_000, None), settings, lambda: clock[0])
    change = SettingChanged(name="memory_budget", value=100_000)
    MemoryLog(store).append(Producer("operator", 0), [Draft(change, derived=False, cause=0, at=1)])
    for clock[0], upto in ((EVERY_S, 1), (EVERY_S * 2, 2)):
        janitor.take([Row.of(entry) for entry in store.entries[upto - 1 : upto]])
    assert [entry.event for entry in store.entries[2:]] == [RolloutPaused(reason="memory", used_bytes=90_000, budget_bytes=100_000)]


def test_nothing_is_said_of_a_run_that_has_ended() -> None:
    story = Story()
    story.tell(RunEnded(reason="completed"))
    assert story.says(1000) is None


def test_the_controller_ends_a_run_that_is_over_its_budget_and_no_other() -> None:
    core = ControllerCore()
    for position, event in enumerate([plan("r").model_copy(update={"standalone": ("s0",)}), paused(99)], 1):
        core.apply(Entry(position, "janitor", 0, False, 0, 0, "", event))
    assert not isinstance(core.decide(), RunEnded)
    core.apply(Entry(3, "janitor", 0, False, 0, 0, "", paused(123)))
    assert core.decide() == RunEnded(reason="memory", detail="123 of 100 bytes on the server are used (redis.memory_budget)")


def test_the_janitor_appends_what_the_brake_says_and_measures_once_in_a_while() -> None:
    store = MemoryStore.create(plan("r"), at=0)
    log, clock, measured = MemoryLog(store), [0.0], list[float]()

    def measure() -> Use:
        measured.append(clock[0])
        return Use(90, None)

    settings = RedisConfig(memory_budget=1 << 17, memory_pause_at=0.0005, memory_resume_at=0.0001)
    janitor = Janitor(log, MemoryTrims(store), MemoryBlobs(store), measure, settings, lambda: clock[0])
    log.append(Producer("x", 0), [Draft(SampleStarted(sample=0, version=0), derived=False, cause=0, at=1)])
    janitor.take([Row.of(entry) for entry in store.entries])
    for clock[0] in (EVERY_S / 2, EVERY_S, EVERY_S * 1.5, EVERY_S * 2, EVERY_S * 2 + STILL_S):
        janitor.take([])
    assert measured == [EVERY_S, EVERY_S * 2, EVERY_S * 2 + STILL_S]
    said = store.entries[2:]
    assert [(entry.source, entry.event.kind, entry.cause) for entry in said] == [("janitor", "RolloutPaused", 2)]
    assert store.entries[-1].event == RolloutPaused(reason="memory", used_bytes=90, budget_bytes=1 << 17)


@pytest.mark.parametrize(("text", "wanted"), [("2GiB", 2 << 30), ("1.5 MB", 1_500_000), (100_000, 100_000)])
def test_the_budget_may_be_said_in_units(text: str | int, wanted: int) -> None:
    assert RedisConfig.model_validate({"memory_budget": text}).memory_budget == wanted


def test_a_run_may_take_no_more_than_the_server_has() -> None:
    assert [Use(60, room).budget(100) for room in (None, 200, 40, 10, 0)] == [100, 100, 100, 70, 60]
