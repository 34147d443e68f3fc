"""The queueing model in which policies are judged: its timeline by hand, and that its two ways give the same seconds."""

from __future__ import annotations

import json
import sys
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev

import pytest
import yaml

from benchmarks import policies as cost
from benchmarks import regimes as command
from benchmarks.queueing.driven import Driven, drive
from benchmarks.queueing.fixed import SEARCHED, STATIC, Setting, seconds_of
from benchmarks.queueing.jobs import Job, Variant, perform, perform_all
from benchmarks.queueing.judgement import judge, search
from benchmarks.queueing.regime import Regime, Regimes, SampleSeconds
from benchmarks.queueing.variants import variant
from bus.entry import Entry
from bus.errors import ConfigError, PolicyFailed, SwingshiftError
from bus.events import SampleMoved, SwitchDone, SwitchStarted
from policies.base import PolicyBase, keep, lend
from policies.protocol import Policy, Verdict
from policies.registry import create
from policies.view import ScheduleView
from replay.invariants import Invariants
from tests.policies.whole_run import WholeRun

REGIMES = Regimes.load()
TINY = Regime(
    name="tiny", R=1, K=2, staleness_threshold=0.5, cycles=2, seeds=(1,), sync_seconds=1, move_seconds=2, standalone_slots=1,
    hybrid_slots=1, activate_seconds=3, deactivate_seconds=1, sample_seconds=SampleSeconds(mean=10, cv=0), train_seconds_per_cycle=4,
)  # fmt: skip
"""At most 3 samples are outstanding; each takes 10 s, a step 2 s."""


class Waits(PolicyBase):
    """Lends only when the trainer lacks samples, until it has a batch."""

    def verdict(self, view: ScheduleView) -> Verdict:
        return keep("only when it waits")

    def extra(self, view: ScheduleView) -> Verdict | None:
        books = view.books
        waits = books.batch is None and len(books.ready) < view.shape.required_samples and not books.last_step_done
        return lend(view.shape.required_samples, "waits") if waits and view.swings.holder == "home" else None


class Fickle(PolicyBase):
    """Lends at each boundary for ever, and takes back when the first sample is ready after it; or names a time."""

    def __init__(self, lent_s: float = 0.0) -> None:
        self.lent_s = lent_s

    def verdict(self, view: ScheduleView) -> Verdict:
        return Verdict("rollout", 1000, "for ever", max_lent_s=self.lent_s)

    def extra(self, view: ScheduleView) -> Verdict | None:
        enough = self.lent_s == 0 and view.swings.holder == "lent" and len(view.books.ready) > 0
        return keep("that is enough") if enough else None


def driven(regime: Regime, policy: Policy) -> tuple[Driven, list[Entry]]:
    entries: list[Entry] = []
    return drive(regime, regime.sample_lengths(1), policy, entries.append), entries


def swings(entries: list[Entry]) -> list[tuple[str, float]]:
    """What begins (`rollout`, `train`) and ends (`rollout done`, `train done`), at which second."""
    found: list[tuple[str, float]] = []
    for entry in entries:
        if isinstance(entry.event, SwitchStarted):
            found.append((entry.event.target, entry.at / 1e9))
        elif isinstance(entry.event, SwitchDone):
            found.append((f"{entry.event.target} done", entry.at / 1e9))
    return found


# --- samples


def test_a_sample_takes_as_long_for_every_policy_and_every_length_of_the_run() -> None:
    regime = REGIMES.by_name["starved"]
    lengths = regime.sample_lengths(1)
    assert regime.model_copy(update={"cycles": 3}).sample_lengths(1) == lengths[: 3 * 64 + 96]
    assert regime.sample_lengths(2)[:5] != lengths[:5]


def test_lengths_have_the_mean_and_the_spread_of_the_regime() -> None:
    for name in ("starved", "starved_tail"):
        seconds = REGIMES.by_name[name].sample_seconds
        logs = [log(length) for length in REGIMES.by_name[name].sample_lengths(3)]
        sigma = sqrt(log(1 + seconds.cv**2))
        assert stdev(logs) == pytest.approx(sigma, rel=0.03)
        assert exp(fmean(logs) + sigma**2 / 2) == pytest.approx(seconds.mean, rel=0.03)


def test_every_tenth_cycle_takes_longer_in_a_burst() -> None:
    bursty = REGIMES.by_name["bursty"]
    calm = bursty.model_copy(update={"sample_seconds": SampleSeconds(mean=80, cv=0.5)})
    times = [a / b for a, b in zip(bursty.sample_lengths(1), calm.sample_lengths(1), strict=True)]
    assert [round(times[64 * cycle], 9) for cycle in range(21)] == [3 if cycle in (9, 19) else 1 for cycle in range(21)]


def test_a_drifting_mean_is_linear_over_the_run() -> None:
    drifting = REGIMES.by_name["drifting"].model_copy(update={"sample_seconds": SampleSeconds(mean=(40, 180), cv=0)})
    lengths = drifting.sample_lengths(1)
    assert (lengths[0], lengths[6399], lengths[6400]) == pytest.approx((40, 180, 180))
    assert lengths[3200] == pytest.approx(110, abs=0.02)


# --- the timeline


def test_a_run_without_lends_by_hand() -> None:
    # Samples 0, 1: ready at 10, 20; steps 10-12, 20-22; published 22-23, which delays sample 2 from 30 to 31; steps 31-33, 41-43; 43-44.
    run, entries = driven(TINY, create("static_fully_async", {}))
    assert run == Driven(seconds=44, lends=0, extra_lends=0, rejected=0, waited_s=10 + 8 + 8 + 8)
    assert swings(entries) == []
    assert seconds_of(TINY, TINY.sample_lengths(1), STATIC) == 44


def test_a_lend_at_each_boundary_by_hand() -> None:
    # Lent at 3; samples 0 (standalone, 10) and 1 (hybrid, 3 + 10) are ready at 13: back at 14; steps to 18; sample 2 is ready at 20, or,
    # as weights are published from 18 to 19, at 21. Lent 19-22; samples 3 (standalone, 21) and 4 (hybrid, 22): 3 is ready at 31, and 4,
    # with 1 s to go, moves and takes 1 + 2 s more, to 34. Back at 32; steps to 36; published at 37.
    run, entries = driven(TINY, create("fixed_ratio", {"deactivate_ratio": 1.0}))
    assert swings(entries) == [
        ("rollout", 0), ("rollout done", 3), ("train", 13), ("train done", 14),
        ("rollout", 19), ("rollout done", 22), ("train", 31), ("train done", 32),
    ]  # fmt: skip
    moved = [(entry.at / 1e9, entry.event.sample, entry.event.source) for entry in entries if isinstance(entry.event, SampleMoved)]
    assert moved == [(31, 4, "h0")]
    assert run == Driven(seconds=37, lends=2, extra_lends=0, rejected=0, waited_s=0)
    assert seconds_of(TINY, TINY.sample_lengths(1), Setting(1.0)) == 37


def test_a_policy_may_lend_in_mid_cycle_when_the_trainer_waits() -> None:
    # Lent 0-3; sample 0 is ready at 10; sample 1, with 3 s to go on the hybrid, waits. Back at 11; step 1 to 13. Lent 13-16; sample 1 goes
    # on with 3 + 2 s to go, sample 2 is ready first, at 20: sample 1 moves again, with 1 s to go, and is ready at 20 + 1 + 2. Back at 21,
    # step 2 to 23, published at 24. Step 3 takes sample 1, 24-26. Lent 26-29; sample 3 (standalone, from 24) is ready at 34: back at 35,
    # step 4 to 37, published at 38.
    run, entries = driven(TINY, Waits())
    assert swings(entries) == [
        ("rollout", 0), ("rollout done", 3), ("train", 10), ("train done", 11),
        ("rollout", 13), ("rollout done", 16), ("train", 20), ("train done", 21),
        ("rollout", 26), ("rollout done", 29), ("train", 34), ("train done", 35),
    ]  # fmt: skip
    assert run == Driven(seconds=38, lends=3, extra_lends=3, rejected=0, waited_s=0)


def test_a_policy_may_take_back_early_or_say_for_how_long_it_lends() -> None:
    _, early = driven(TINY, Fickle())
    assert swings(early)[:3] == [("rollout", 0), ("rollout done", 3), ("train", 10)]
    _, timed = driven(TINY, Fickle(lent_s=4))
    assert swings(timed)[:3] == [("rollout", 0), ("rollout done", 3), ("train", 7)]


def test_a_lend_that_nothing_ends_is_ended_when_no_more_can_become_ready() -> None:
    class Forever(Fickle):
        def extra(self, view: ScheduleView) -> Verdict | None:
            return None

    run, _ = driven(TINY, Forever())
    assert run.lends == 2


def test_a_policy_that_raises_ends_the_run() -> None:
    with pytest.raises(PolicyFailed, match="PolicyBase has no method verdict"):
        driven(TINY, PolicyBase())


# --- the real cores


@pytest.mark.parametrize("name", ["starved_slow_swing", "balanced", "bursty", "few_standalone"])
def test_the_model_with_events_and_the_one_without_take_the_same_seconds(name: str) -> None:
    regime = REGIMES.by_name[name].model_copy(update={"cycles": 11})
    lengths = regime.sample_lengths(2)
    for ratio in (0.3, 0.75):
        policy = create("fixed_ratio", {"deactivate_ratio": ratio})
        assert drive(regime, lengths, policy).seconds == pytest.approx(seconds_of(regime, lengths, Setting(ratio)), rel=1e-12)


@pytest.mark.parametrize(("name", "policy"), [("starved_tail", create("default", {})), ("drifting", Waits()), ("balanced", Fickle())])
def test_with_the_real_rollouter_a_run_takes_the_same_seconds(name: str, policy: Policy) -> None:
    regime = REGIMES.by_name[name].model_copy(update={"cycles": 6})
    lengths = regime.sample_lengths(2)
    again = type(policy)() if isinstance(policy, PolicyBase) else create(policy.name, {})
    assert WholeRun(regime, lengths, policy).run() == pytest.approx(drive(regime, lengths, again).seconds, rel=1e-9)


@pytest.mark.parametrize("policy", [create("default", {}), Waits(), Fickle()])
def test_what_the_model_writes_is_a_log_that_breaks_no_rule(policy: Policy) -> None:
    regime = REGIMES.by_name["starved_tail"].model_copy(update={"cycles": 5})
    run, entries = driven(regime, policy)
    invariants = Invariants()
    broken = [words for entry in entries for words in invariants.apply(entry)]
    assert broken == []
    assert run.lends > 0
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))


# --- the judgement


def test_the_search_takes_the_best_mean_over_the_seeds() -> None:
    rows = {seed: [3600.0 * 9] + [3600.0 * 8] * len(SEARCHED) for seed in (1, 2)}
    rows[1][5], rows[2][5] = 3600.0 * 5, 3600.0 * 7.5
    rows[2][9] = 3600.0 * 6
    static, best = search(rows)
    assert (static, best.setting, best.hours) == (9, SEARCHED[4], 6.25)
    assert best.per_seed == ((SEARCHED[4], 5), (SEARCHED[8], 6))


def test_the_three_bars() -> None:
    # Best saves 1 h of 10 h: 0.97 h must be saved.
    assert judge(9.03, 10, 9, changing=False).passed
    assert not judge(9.031, 10, 9, changing=False).passed
    # Where it saves little, only static counts.
    assert judge(10.1, 10, 9.8, changing=False).passed
    assert not judge(10.11, 10, 9.8, changing=False).passed
    # In changing regimes the best must be beaten, whatever it saves.
    assert judge(8.99, 10, 9, changing=True).passed
    assert not judge(9, 10, 9, changing=True).passed
    assert judge(9.03, 10, 9, changing=False).share_of_saving == pytest.approx(0.97)


# --- the command


def test_a_policy_is_written_with_its_settings() -> None:
    found = variant("default+deactivate_ratio=0.6+only_hybrid=true")
    assert (found.name, found.params) == ("default", {"deactivate_ratio": 0.6, "only_hybrid": True})
    with pytest.raises(ConfigError, match="'ratio' has no ="):
        variant("default+ratio")
    with pytest.raises(ConfigError, match="did you mean 'default'"):
        variant("defualt")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    content = yaml.safe_load((Path(command.__file__).parent / "regimes.yaml").read_text())
    content["common"] |= {"cycles": 2, "seeds": [1]}
    path = tmp_path / "regimes.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_command_prints_a_table_and_one_json_line(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--file", str(small), "--regimes", "starved,bursty", "--policies", "static_fully_async,default", "--judge", "default"]
    monkeypatch.setattr(sys, "argv", ["regimes", *arguments, "--hidden", "--processes", "1"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    *lines, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert ended.value.code == (0 if result["passed"] else 1)
    assert [line.split()[0] for line in lines if line] == ["hours", "starved", "bursty", "with", "starved", "bursty"]
    hours = result["regimes"]["starved"]["hours"]
    assert hours["static"] == hours["static_fully_async"] > hours["best_fixed"]
    assert result["regimes"]["starved"]["hours_with_free_swings"]["default"] < hours["default"]


def test_a_child_gives_what_this_process_gives_and_its_failure_ends_the_command(small: Path, tmp_path: Path) -> None:
    named = Variant(label="default", name="default", params={}, source="")
    job = Job(file=small, regime="starved", seed=1, free_swings=False, variant=named)
    assert list(perform_all([job], processes=1)) == [(job, perform(job))]
    missing = job.model_copy(update={"file": tmp_path / "none.yaml"})
    with pytest.raises(SystemExit, match="default in starved, seed 1: its process ended"):
        list(perform_all([missing], processes=1))


def test_a_run_in_which_nothing_moves_any_more_is_an_error() -> None:
    stuck = TINY.model_copy(update={"train_seconds_per_cycle": 1e8})
    with pytest.raises(SwingshiftError, match="nothing moves after step 0"):
        driven(stuck, create("static_fully_async", {}))


def test_the_cost_of_a_policy_is_measured_on_decisions_that_come_out_as_they_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["policies", "--policies", "separate_async", "--regime", "bursty", "--cycles", "3"])
    with pytest.raises(SystemExit):
        cost.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["golden_boundaries"], result["golden_differing"]) == (995, 0)
    assert result["separate_async"]["decisions"] >= 3
    with pytest.raises(SystemExit, match="0 decisions differ from the 3"):
        cost.same("here", [], cost.long_log(variant("static_fully_async"), "bursty", 3))
