"""The live view: what is on the board, that it fits, and what is said where there is no terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from bus.entry import Entry
from bus.events import (
    DeadlineMissed,
    KillRequested,
    PolicyAttached,
    ReplicaAdded,
    ReplicaFailed,
    RolloutPaused,
    SampleStarted,
    ServiceLost,
    ServiceStarted,
    Stalled,
    StopRequested,
    SwitchDone,
    SwitchRejected,
)
from policies.swings import Lend
from services.monitor.board import Board, recent, sparkline
from services.monitor.elapsed import Elapsed, clock_text
from services.monitor.notes import note_of, swing_note
from services.monitor.report import Verified, print_summary
from services.monitor.summary import Summary, summarise
from services.monitor.view import LiveView
from tests.replay.recordings import simulated
from tests.services.monitor.logs import Story, batch, finished, lend, plan, ready, request, step_done


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(board: Board, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(board.draw(width, height))
    return capture.get().splitlines()


def board_of(entries: list[Entry], lend: Lend | None = None, notes: int = 0) -> Board:
    summary = Summary()
    for entry in entries:
        summary.apply(entry)
    return Board(summary, lend, [(float(n), f"note {n} {'long ' * 40}") for n in range(notes)], 75.0, 12.0)


def training_run() -> Story:
    """One step of four is done, one is in training, two samples are in flight."""
    story = Story(plan(total_steps=4)).open(10.0)
    story.rollouter(10.0, *(SampleStarted(sample=sample, version=0) for sample in range(1, 6)), request(4), request(5))
    for sample in range(4):
        story.rollouter(11.0, ready(sample))
    return story.trainer(batch(1, 0, 1), step_done(1, reward=0.25), batch(2, 2, 3))


# --- the board -------------------------------------------------------------------------------------------------------------------


def test_the_board_says_how_far_the_run_is_who_holds_the_devices_and_what_replicas_do() -> None:
    text = "\n".join(drawn(board_of(training_run().entries, notes=2), 80, 24))
    assert "r  running 1:15  policy default" in text
    assert "1 of 4  about 3:45 left" in text
    assert "0.250 now" in text
    assert "0 ready of 2, 2 in flight, limit 6" in text
    assert "training" in text
    assert "for 0:12" in text
    assert "0 swings cost 0.0 s" in text
    s0, h0 = (line.split() for line in text.splitlines() if line.startswith(("s0", "h0")))
    assert s0 == ["s0", "standalone", "generate", "2/4", "-", "0"]
    assert h0 == ["h0", "hybrid", "asleep", "0/4", "-", "0"]
    assert "0:01  note 1" in text


def test_the_board_says_when_lent_devices_come_back() -> None:
    story = Story().open(10.0).controller(20.0, lend(1)).controller(23.0, SwitchDone(swing=1, target="rollout"))
    text = "\n".join(drawn(board_of(story.entries, Lend(1, "verdict", 4, 60.0)), 80, 24))
    assert "lent" in text
    assert "for 0:12, back at 4 ready" in text
    assert "1 swing cost 3.0 s, 23.1 % of the time" in text


def test_the_board_before_the_first_entry() -> None:
    assert drawn(board_of([]), 80, 24) == ["waiting for the first entry of the log"]


def test_a_run_that_starts_says_for_how_long_and_which_engines_it_waits_for() -> None:
    summary = Summary()
    story = Story(plan(standalone=("s0", "s1")))
    for entry in story.entries:
        summary.apply(entry)
    assert drawn(Board(summary, None, [], None, None, 83.0), 100, 24)[0].startswith(
        "r  starting 1:23, waiting for s0, s1, h0  policy default"
    )
    many = Story(plan(standalone=tuple(f"s{number}" for number in range(8))))
    summary = Summary()
    for entry in many.entries:
        summary.apply(entry)
    assert "waiting for 9 replicas" in drawn(Board(summary, None, [], None, None, 83.0), 100, 24)[0]


def test_an_engine_that_took_long_to_start_is_worth_a_line_and_others_are_not() -> None:
    story = Story().replica("s0", ReplicaAdded(replica="s0", role="standalone", slots=4, seconds=61.4))
    assert note_of(story.entries[-1], opened=False) == "replica s0 is up: its engine took 61 s to start"
    story.replica("s0", ReplicaAdded(replica="s0", role="standalone", slots=4, seconds=1.0))
    assert note_of(story.entries[-1], opened=False) is None


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 12), (40, 5), (200, 60)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_board_fits_at_every_moment_of_a_run(seed: int, width: int, height: int) -> None:
    entries = simulated(seed).store.entries
    for end in range(1, len(entries), 9):
        lines = drawn(board_of(entries[:end], notes=50), width, height)
        assert all(len(line) <= width for line in lines)
        assert len(lines) < height or height < 15, "\n".join(lines)


def test_a_hundred_replicas_leave_room_for_what_happens() -> None:
    names = tuple(f"s{number}" for number in range(100))
    lines = drawn(board_of(Story(plan(standalone=names)).open().entries, notes=50), 80, 24)
    assert len(lines) == 23
    assert any("more" in line and "idle" in line for line in lines)
    assert sum("note" in line for line in lines) >= 3


def test_a_sparkline_fits_and_spans_its_levels() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 10) == "▁"
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([float(number) for number in range(100)], 10) == "▁▂▃▃▄▅▆▆▇█"
    assert len(sparkline([float(number) for number in range(101)], 10)) <= 10


def test_the_recent_reward_is_a_mean_over_some_steps() -> None:
    assert recent([1.0]) == 1.0
    assert recent([0.0] * 96 + [1.0] * 4) == 0.4


# --- time ------------------------------------------------------------------------------------------------------------------------


def test_elapsed_time_goes_by_the_sources_clock_up_to_its_newest_entry_and_by_ours_from_there() -> None:
    clock = Clock()
    elapsed = Elapsed(clock)
    first, later = Story().open(10.0).controller(70.0, lend(1)).entries[-3:2000:2]
    moment = elapsed.apply(first)
    assert elapsed.since_s(moment) == 0.0
    elapsed.apply(later)  # read at once, though a minute lies between them: the view was started late
    assert elapsed.since_s(moment) == 60.0
    clock.now += 5.0
    assert elapsed.since_s(moment) == 65.0


def test_elapsed_time_over_a_restart_goes_by_our_clock() -> None:
    clock = Clock()
    elapsed = Elapsed(clock)
    story = Story().open(10.0).controller(999.0, ServiceStarted(code=""))
    opened = next(entry for entry in story.entries if entry.event.kind == "BoundaryOpened")
    moment = elapsed.apply(opened)
    clock.now += 7.0
    elapsed.apply(story.entries[-1])
    assert elapsed.since_s(moment) == 7.0


def test_clock_texts() -> None:
    assert [clock_text(seconds) for seconds in (0.0, 7.9, 75.0, 3723.0)] == ["0:00", "0:07", "1:15", "1:02:03"]


# --- notes -----------------------------------------------------------------------------------------------------------------------


def test_trouble_is_noted_in_words() -> None:
    story = Story().open()
    story.say("supervisor", 0.0, ServiceLost(service="trainer", epoch=1, restarting=True, detail="Traceback\nexit code 1"))
    story.controller(11.0, DeadlineMissed(key="wake:1:h0:1", seconds=120.0), KillRequested(replica="h0", epoch=1, reason="too late"))
    story.controller(12.0, Stalled(have=1, need=2, waiting_on=("s0",)), SwitchRejected(request=5, swing=0, reason="late"))
    story.replica("s0", ReplicaFailed(replica="s0", during="update", error="no such file")).trainer(ServiceStarted(code=""))
    story.say("operator", 0.0, StopRequested(reason="enough"))
    notes = [note for entry in story.entries if (note := note_of(entry, opened=True) or swing_note(entry, Summary())) is not None]
    assert notes == [
        "trainer was lost, it is restarted: exit code 1",
        "not in time: wake:1:h0:1 (120 s)",
        "replica h0 is killed: too late",
        "stalled: 1 of 2 samples ready, waiting for s0",
        "a request to swing was rejected: late",
        "replica s0 failed during update: no such file",
        "trainer started anew, epoch 2",
        "asked to stop: enough",
    ]


def test_a_pause_is_noted_only_when_the_run_has_begun() -> None:
    entry = Story().rollouter(1.0, RolloutPaused(reason="no_replica")).entries[-1]
    assert note_of(entry, opened=False) is None
    assert note_of(entry, opened=True) == "generation pauses: no_replica"


def test_a_finished_swing_is_noted_with_its_cost() -> None:
    story = Story().open(10.0).controller(20.0, lend(1)).controller(23.5, SwitchDone(swing=1, target="rollout"))
    summary = Summary()
    for entry in story.entries:
        summary.apply(entry)
    assert swing_note(story.entries[-1], summary) == "swing 1: lent (verdict) in 3.50 s: yield 3.50"


# --- the view --------------------------------------------------------------------------------------------------------------------


def shown_plainly(entries: list[Entry], clock: Clock, seconds_an_entry: float) -> list[str]:
    output = StringIO()
    with LiveView(Console(file=output, width=80), clock) as view:
        for entry in entries:
            view.update(entry)
            clock.now += seconds_an_entry
    return output.getvalue().splitlines()


def test_without_a_terminal_there_is_a_plain_line_every_few_seconds_and_one_at_the_end() -> None:
    story = training_run()
    for step in range(2, 5):
        story.trainer(step_done(step), batch(step + 1, 5, 6))
    lines = shown_plainly(story.entries, Clock(), 0.0)
    assert len(lines) == 2
    assert lines[0].split("  ")[1:] == [
        "step 1/4", "reward 0.250", "ready 2/2", "in flight 2", "version 0", "devices home", "swings 0", "waited 0.0 s"
    ]  # fmt: skip
    assert "step 4/4" in lines[-1]
    assert len(shown_plainly(story.entries, Clock(), 2.0)) == 3


def test_without_a_terminal_a_line_is_never_wrapped_and_holds_no_control_codes() -> None:
    story = training_run().say("supervisor", 0.0, ServiceLost(service="trainer", epoch=1, restarting=True, detail="long " * 60))
    lines = shown_plainly(story.entries, Clock(), 0.0)
    assert any(line.count("long") == 60 for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_without_a_terminal_trouble_is_said_at_once() -> None:
    story = Story().open().say("supervisor", 0.0, ServiceLost(service="trainer", epoch=1, restarting=False, detail="gone"))
    story.say("policy", 0.0, PolicyAttached(name="default", params={}, mode="active", code=""))
    lines = shown_plainly(story.entries, Clock(), 0.0)
    assert lines[:2] == ["0:00  trainer was lost, it will not come back: gone", "0:00  policy default decides from here on"]


def test_on_a_terminal_the_view_is_drawn_and_the_last_frame_stays() -> None:
    output = StringIO()
    console = Console(file=output, width=80, height=24, force_terminal=True, color_system=None)
    with LiveView(console) as view:
        for entry in training_run().entries:
            view.update(entry)
    assert "\x1b" in output.getvalue()
    assert "1 of 4" in output.getvalue().rpartition("running")[2]


def test_a_view_that_saw_nothing_says_nothing() -> None:
    assert shown_plainly([], Clock(), 0.0) == []


# --- the report ------------------------------------------------------------------------------------------------------------------


def reported(entries: list[Entry], verified: Verified | None = None, width: int = 80) -> str:
    output = StringIO()
    print_summary(summarise(entries), verified, Console(file=output, width=width))
    return output.getvalue()


def test_the_report_tells_reward_time_samples_swings_and_the_verification() -> None:
    story = training_run().rollouter(12.0, ready(4)).trainer(step_done(2, reward=0.75))
    story.controller(20.0, lend(1)).controller(23.5, SwitchDone(swing=1, target="rollout")).replica("s0", finished(4))
    text = reported(story.entries, Verified(passed=True, words="passed: 20 entries"))
    assert "0.250 in the first quarter of the steps, 0.750 in the last: +0.500" in text
    assert "13.50 s, after 10.00 s of start-up" in text
    assert "4 trained, 0 dropped; staleness 0 to 0, 0.00 on average" in text
    assert "1 cost 3.50 s (25.9 % of the time)" in text
    assert "verify   passed: 20 entries" in text
    assert "1    2 lend verdict    3.50 yield 3.50      0" in text


def test_the_report_of_a_run_that_never_began() -> None:
    text = reported(Story().entries)
    assert "ended: no" in text
    assert "no step was done" in text
    assert "swings   none" in text


@pytest.mark.parametrize("seed", range(10))
def test_every_report_is_80_columns_wide_at_most(seed: int) -> None:
    assert all(len(line) <= 80 for line in reported(simulated(seed).store.entries).splitlines())
