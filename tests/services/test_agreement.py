"""Replicas and trainer: when they disagree, who says so, and from which difference on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import count
from math import inf, nan
from pathlib import Path

import pytest
from rich.console import Console

from bus.entry import Entry
from bus.events import BatchFormed, Event, RunPlanned, SettingChanged, StepDone
from services.agreement import SAME_VERSION, Agreement
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine
from services.monitor.notes import agreement_note
from services.monitor.report import print_summary
from services.monitor.summary import Summary
from services.plan import plan_run
from services.precision import engine_dtype, expected_difference, logprob_space
from services.weights.settings import wire_dtype


def step_done(step: int, version: int, mean: float | None) -> StepDone:
    metrics = {} if mean is None else {f"{SAME_VERSION}_mean": mean, f"{SAME_VERSION}_max": 3 * mean, f"{SAME_VERSION}_tokens": 40.0}
    return StepDone(step=step, version=version, is_boundary=False, num_samples=1, seconds={}, metrics=metrics)


@pytest.mark.parametrize(
    ("steps", "limit", "said"),
    [
        ([(0, 0.01), (0, 0.02), (1, 0.03), (1, None), (2, 0.0001)], 0.001, [1, 3]),
        ([(0, 0.001)], 0.001, []),
        ([(0, 0.0001), (0, 0.01)], 0.001, [2]),
        ([(0, 50.0)], 0.0, []),
        ([(0, nan), (1, inf)], 0.001, [1, 2]),
        ([(0, None)], 0.001, []),
    ],
)
def test_a_disagreement_is_said_once_a_version(steps: list[tuple[int, float | None]], limit: float, said: list[int]) -> None:
    agreement = Agreement()
    found = [agreement.apply(step_done(step, version, mean), limit) for step, (version, mean) in enumerate(steps, 1)]
    assert [one.step for one in found if one is not None] == said
    assert len(agreement.means) == sum(mean is not None for _, mean in steps)


def test_the_words_have_the_values_and_what_to_look_at() -> None:
    found = Agreement().apply(step_done(7, 2, 0.25), 0.05)
    assert str(found) == (
        "replicas and trainer disagree: in step 7, log-probabilities of the 40 tokens that version 2 sampled differ by 0.25 on average "
        "(highest 0.75, KL 0), over max_logprob_diff 0.05"
    )
    assert found is not None
    assert "rollout.engine_kwargs.dtype" in found.advice


def planned(**sections: dict[str, object]) -> RunPlanned:
    settings: dict[str, object] = {
        "model": {"path": "scripted"}, "rollout": {"engine": "scripted", "n": 2}, "devices": "unpinned",
        "async_training": {"total_steps": 6},
    }  # fmt: skip
    for name, changes in sections.items():
        before = settings.get(name, {})
        assert isinstance(before, dict)
        settings[name] = {**before, **changes}
    return plan_run(make_config(settings, "test"), "r1", Machine((0, 1)))


def with_batches(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, StepDone):
            yield BatchFormed(step=event.step, samples=(), micro_batches=())
        yield event


def summary_of(*events: Event) -> tuple[Summary, list[str]]:
    summary, notes, positions = Summary(), list[str](), count(1)
    for event in with_batches(events):
        entry = Entry(next(positions), "trainer", 1, False, 0, 0, "", event)
        summary.apply(entry)
        notes += [note] if (note := agreement_note(entry, summary)) else []
    return summary, notes


def test_summary_report_and_live_view_say_it() -> None:
    summary, notes = summary_of(planned(), step_done(1, 0, 0.2), step_done(2, 0, 0.4), step_done(3, 1, None))
    numbers = summary.as_dict()
    assert numbers["logprob_diff_same_version"] == pytest.approx(0.3)
    assert numbers["logprob_diff_measured_steps"] == 2
    assert numbers["max_logprob_diff"] == 0.001
    assert numbers["disagreements"] == [{"step": 1, "version": 0, "mean": 0.2, "limit": 0.001}]
    assert len(notes) == 1
    console = Console(width=200, record=True, file=StringIO())
    print_summary(numbers, console=console)
    assert (
        "replicas and trainer 0.3 apart on average, with the same weights (2 steps); over 0.001 with 1 versions, first in step 1"
        in console.export_text()
    )


def test_the_limit_can_change_on_a_live_run() -> None:
    change = SettingChanged(name="max_logprob_diff", value=0.5)
    summary, notes = summary_of(planned(), change, step_done(1, 0, 0.2))
    assert summary.as_dict()["max_logprob_diff"] == 0.5
    assert notes == []
    console = Console(width=200, record=True, file=StringIO())
    print_summary(summary.as_dict(), console=console)
    assert "replicas and trainer 0.2 apart on average, with the same weights (1 steps)" in console.export_text()


def test_what_is_too_small_for_a_summary_is_not_called_nothing() -> None:
    console = Console(width=200, record=True, file=StringIO())
    print_summary(summary_of(planned(), step_done(1, 0, 1e-8))[0].as_dict(), console=console)
    assert "replicas and trainer less than 0.000001 apart" in console.export_text()


def test_a_run_that_never_measured_it_says_so() -> None:
    console = Console(width=200, record=True, file=StringIO())
    print_summary(summary_of(planned(), step_done(1, 0, None))[0].as_dict(), console=console)
    assert "not measured" in console.export_text()


def made(folder: Path, dtype: str | None, **sections: object) -> RunConfig:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"} | ({} if dtype is None else {"torch_dtype": dtype})))
    return make_config({"model": {"path": str(folder)}, **sections}, "test")


@pytest.mark.parametrize(
    ("dtype", "sections", "expected"),
    [
        ("float32", {}, 0.001),
        (None, {}, 0.001),
        ("bfloat16", {}, 0.05),
        ("bfloat16", {"rollout": {"engine_kwargs": {"dtype": "float32"}}}, 0.001),
        ("float32", {"rollout": {"engine_kwargs": {"dtype": "float16"}}}, 0.05),
        ("float32", {"actor": {"dtype": "bfloat16", "device": "cuda"}}, 0.05),
        ("float32", {"weights": {"dtype": "bfloat16"}}, 0.05),
        ("bfloat16", {"rollout": {"top_p": 0.9}}, 0.0),
        ("float32", {"rollout": {"top_k": 20}}, 0.0),
    ],
)
def test_the_limit_follows_from_what_both_sides_compute_in(
    tmp_path: Path, dtype: str | None, sections: dict[str, object], expected: float
) -> None:
    config = made(tmp_path, dtype, **sections)
    assert expected_difference(config, wire_dtype(config)) == expected


def test_a_plan_declares_what_log_probabilities_are_of() -> None:
    plan = planned(rollout={"top_k": 20, "top_p": 0.9}, async_training={"max_logprob_diff": 0.25})
    assert plan.environment["logprob_space"] == "softmax(logits / temperature), of top_k 20 and top_p 0.9, renormalised"
    assert plan.environment["engine_dtype"] == "float32"
    assert plan.max_logprob_diff == 0.25
    assert logprob_space(make_config({}, "test").rollout) == "softmax(logits / temperature)"


def test_a_model_folder_that_names_its_dtype_inside_is_understood(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"dtype": "bfloat16"}}))
    assert engine_dtype(make_config({"model": {"path": str(tmp_path)}}, "test")) == "bfloat16"
