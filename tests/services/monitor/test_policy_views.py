"""Policies and shadows as a person sees them: notes, the live view, the tables, the report page, one line of an entry."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bus.events import (
    PolicyAttached,
    PolicyDetached,
    PolicyRefused,
    PolicyRequested,
    ServiceLost,
    ServiceStarted,
    ShadowVerdict,
    SwitchRequested,
)
from bus.fields import fields_text
from replay.report.page import render
from replay.report.timeline import Timeline
from services.cli.status import Status
from services.cli.tail import line_of
from services.monitor.board import Board
from services.monitor.findings import problems_of
from services.monitor.notes import note_of
from services.monitor.policy_tables import differences_table, seconds_words
from services.monitor.report import print_summary
from services.monitor.situation import situation_of
from services.monitor.summary import summarise
from tests.replay.browser import open_page
from tests.services.monitor.logs import Story
from tests.services.monitor.policy_runs import Run, attached, first_cycle, verdict

TRACEBACK = 'Traceback (most recent call last):\n  File "own.py", line 3, in verdict\nZeroDivisionError: division by zero'


def asked(action: str, name: str = "", label: str = "", **params: float) -> PolicyRequested:
    return PolicyRequested.model_validate({"action": action, "name": name, "label": label, "params": params})


def swapped() -> Run:
    """`default` decides boundaries 0 and 1, then `fixed_ratio`; `deep` watches and would have kept the devices; a swap is refused."""
    run = first_cycle(Run(), verdict(ShadowVerdict, 0, False))
    run.answers(verdict(SwitchRequested, 1, False), verdict(ShadowVerdict, 1, False)).grant().make(3, 6.0).train(4, 5).train(6, 7)
    run.say("operator", 0.0, asked("swap", "fixed_ratio", deactivate_ratio=0.6))
    run.say("policy", 0.0, attached("fixed_ratio", request=len(run.entries), deactivate_ratio=0.6))
    run.answers(verdict(SwitchRequested, 2, True, 3), verdict(ShadowVerdict, 2, True, 5)).lend(1.0, 4, 2.0, 0.5).grant()
    run.train(8, 9).train(10, 11).say("operator", 0.0, asked("swap", "my/own.py:Wild"))
    run.say("supervisor", 0.0, PolicyRefused(request=len(run.entries), name="my/own.py:Wild", stage="answer", detail=TRACEBACK))
    return run


def text_of(print_to: Console) -> str:
    assert isinstance(print_to.file, StringIO)
    return print_to.file.getvalue()


def console(width: int = 80) -> Console:
    return Console(file=StringIO(), width=width)


def test_what_is_asked_for_and_what_comes_of_it_is_noted_in_words() -> None:
    story = Story().say("policy", 0.0, attached(deactivate_ratio=0.3))
    story.say(
        "operator", 0.0, asked("swap", "my/own.py:Mine", cycles=2), asked("shadow", "default", "deep"), asked("promote", "default", "deep")
    )
    story.say("operator", 0.0, asked("rollback", "fixed_ratio"), asked("detach", label="deep"))
    story.say("policy:deep", 0.0, attached("default", "shadow", label="deep"), PolicyDetached(name="default", reason="asked to"))
    story.say("supervisor", 0.0, PolicyRefused(request=3, name="my/own.py:Mine", stage="answer", detail=TRACEBACK))
    story.say("supervisor", 0.0, PolicyRefused(request=7, name="", label="gone", stage="load", detail="no shadow watches as gone"))
    assert [note for entry in story.entries if (note := note_of(entry, opened=True)) is not None] == [
        "policy default (deactivate_ratio 0.3) decides from here on",
        "asked to let policy Mine (cycles 2) decide",
        "asked to let policy default watch as deep",
        "asked to let shadow deep (default) decide",
        "asked to let policy fixed_ratio decide again",
        "asked to end shadow deep",
        "policy default watches as deep",
        "shadow deep watches no more: asked to",
        "policy Mine was refused at answer, nothing was changed: ZeroDivisionError: division by zero",
        "shadow gone was refused at load, nothing was changed: no shadow watches as gone",
    ]


def test_the_live_view_names_who_decides_now_and_has_a_line_for_each_shadow() -> None:
    shown = console(100)
    shown.print(Board(swapped().summary(), None, [], 75.0, 12.0).draw(100, 24))
    lines = text_of(shown).splitlines()
    assert "policy fixed_ratio" in lines[0]
    (shadow,) = [line for line in lines if line.startswith("shadow")]
    assert shadow.split()[:6] == ["shadow", "deep", "1", "of", "1", "differ,"]
    assert "would have saved" in shadow or "would have lost" in shadow
    assert len(lines) <= 24


def test_a_shadow_that_has_answered_nothing_yet_says_so() -> None:
    shown = console(100)
    shown.print(Board(Run().summary(), None, [], 75.0, 12.0).draw(100, 24))
    assert "nothing to compare yet" in text_of(shown)


@pytest.mark.parametrize("height", range(10, 40, 7))
def test_with_shadows_a_frame_is_no_higher_than_the_terminal(height: int) -> None:
    run = swapped()
    for number in range(9):
        run.say(f"policy:more{number}", 0.0, attached("default", "shadow", label=f"more{number}"))
    shown = console()
    shown.print(Board(run.summary(), None, [(1.0, "note")] * 40, 75.0, 12.0).draw(80, height))
    lines = text_of(shown).splitlines()
    assert len(lines) <= max(height, 9 + 4 + 4 + 1)
    assert sum(line.startswith("shadow") for line in lines) == 4


def test_the_summary_of_a_run_with_swaps_tells_who_decided_and_what_shadows_would_have_saved() -> None:
    shown = console()
    print_summary(swapped().summary().as_dict(), console=shown)
    text = text_of(shown)
    assert "default                            the plan       2 to 48" in text
    assert "fixed_ratio (deactivate_ratio 0.6) swap, entry 47 48 on          2" in text
    assert "deep: fixed_ratio" in text
    assert "against default                            1 of 2 differ, 5.25 s lost" in text
    assert "against fixed_ratio (deactivate_ratio 0.6) 1 of 1 differ," in text
    assert "deep          2 lend, back at 3 lend, back at 5" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_summary_of_a_run_without_swaps_says_nothing_of_them() -> None:
    shown = console()
    print_summary(summarise(Story().open().say("policy", 0.0, attached()).entries), console=shown)
    assert "policies" not in text_of(shown)


def test_only_boundaries_of_shadows_that_watch_now_are_listed_as_the_last_ones() -> None:
    run = swapped()
    table = differences_table(run.summary().as_dict())
    assert table is not None
    assert table.row_count == 1
    run.say("policy:deep", 0.0, PolicyDetached(name="fixed_ratio", reason="asked to"))
    assert differences_table(run.summary().as_dict()) is None


@pytest.mark.parametrize(
    ("saved_s", "words"), [(None, "seconds unknown"), (0.0, "nothing saved"), (1.234, "1.23 s saved"), (-2.0, "2.00 s lost")]
)
def test_an_estimate_in_words(saved_s: float | None, words: str) -> None:
    assert seconds_words(saved_s) == words


def test_status_and_doctor_know_shadows_apart_from_who_decides() -> None:
    run, status = swapped(), Status()
    for entry in run.entries:
        status.apply(entry)
    assert status.services["policy"] == (2, "fixed_ratio decides")
    assert status.services["policy:deep"] == (1, "fixed_ratio watches")
    run.say("controller", 0.0, ServiceStarted(code=""))
    alive = {"controller": 2, "trainer": 1, "rollouter": 1, "policy": 2, "replica:s0": 1, "replica:h0": 1}
    problems = [problem for problem in problems_of(situation_of(run.entries), alive, 0) if "policy" in problem]
    assert [problem.partition(";")[0] for problem in problems] == [
        "policy:deep shows no sign of life (epoch 1): what it would have decided is not recorded"
    ]


def test_the_report_page_has_who_decided_as_a_strip_and_in_a_table(tmp_path: Path) -> None:
    timeline = Timeline()
    for entry in swapped().entries:
        timeline.apply(entry)
    opened = open_page(render([timeline]), tmp_path)
    assert opened.complaints == []
    assert opened.count(r'<rect class="policy"') == 2
    assert opened.count(r"<td>fixed_ratio \(deactivate_ratio 0.6\)</td>") == 2, "who decided, and what the shadow is compared with"
    assert "boundary 0 (entry 8): lend, back at 4; the shadow: keep; 5.25 s lost" in opened.shown
    assert "swap of Wild was refused at answer" in opened.shown


def test_a_policys_text_is_only_measured_in_the_line_of_its_entry() -> None:
    request = asked("swap", "my/own.py:Mine").model_copy(update={"source": "line\n" * 200})
    assert "source=(201 lines, 1000 letters)" in line_of(Story().say("operator", 0.0, request).entries[-1])
    assert fields_text(request.model_copy(update={"source": "a\nb"})).endswith(r"source='a\nb' label=''")


def test_doctor_and_status_tell_of_a_policy_that_fails_again_and_again() -> None:
    run, alive = swapped(), {"controller": 2, "trainer": 1, "rollouter": 1, "policy": 2, "policy:deep": 1, "replica:s0": 1, "replica:h0": 1}
    run.say("controller", 0.0, ServiceStarted(code=""))
    active = next(each.event for each in reversed(run.entries) if each.source == "policy" and isinstance(each.event, PolicyAttached))
    for epoch in (2, 3):
        assert not [each for each in problems_of(situation_of(run.entries), alive, run.entries[-1].at) if "fails" in each]
        detail = "exit code 1: ZeroDivisionError: by zero\n  For further information visit https://errors"
        run.say("supervisor", 0.0, ServiceLost(service="policy", epoch=epoch, restarting=True, detail=detail))
        run.say("policy", 0.0, active)
        alive["policy"] = epoch + 1
    (problem,) = [each for each in problems_of(situation_of(run.entries), alive, run.entries[-1].at) if "fails" in each]
    assert "was lost 2 times, last at entry" in problem
    assert "exit code 1: ZeroDivisionError: by zero, 0 s ago" in problem
    assert "`swingshift policy rollback" in problem
