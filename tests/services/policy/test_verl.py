"""Policies that were written for verl, on hand-written logs: their files run unchanged, in processes of their own. R = 4, K = 2, S = 8."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.errors import ConfigError, PolicyFailed
from bus.events import (
    DeadlineMissed,
    PolicyAttached,
    RebalanceRequested,
    SettingChanged,
    ShadowVerdict,
    SwitchDone,
    SwitchRequested,
    Value,
)
from bus.host import rebuild
from bus.snapshot import freeze, thaw_into
from policies.check import check_decisions
from policies.registry import create
from services.policy.core import PolicyCore
from services.policy.making import make_policy, policy_code
from services.policy.verl import start
from services.policy.verl_check import verl_deciders
from services.policy.verl_process import VerlProcess
from tests.policies.logs import Story, plan

ROOT = Path(__file__).parents[3]
RATIO_POLICIES = (ROOT / "examples" / "verl" / "ratio_policies.py").read_text()
GOLDEN = (ROOT / "tests" / "golden" / "policy_decisions.json").read_text()
HEAD = """\
import ray
from verl.experimental.fully_async_policy.dynamic_schedule import DynamicScheduleContext, DynamicSchedulePolicyBase, register_policy

"""
TELLING = (
    HEAD
    + """\
class Telling(DynamicSchedulePolicyBase):
    def __init__(self, deactivate_ratio=0.5, only_hybrid=False):
        self.wanted = [True, False, True]
        print("made", deactivate_ratio, only_hybrid)

    def should_deactivate(self, global_steps, is_hybrid_active, ctx):
        print("should_deactivate", global_steps, is_hybrid_active, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx):
        print("deactivate_wait_samples")
        return 5

    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        print("should_activate_after_step", global_steps, is_hybrid_active, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
        return self.wanted[global_steps]

    def request_rebalance(self, global_steps, ctx):
        print("request_rebalance", global_steps, ctx.last_activate_duration_s)

    def update_after_step(self, global_steps, ctx):
        print("update_after_step", global_steps, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
"""
)


def small(**bodies: str) -> str:
    """A file with a class `Mine`, whose methods have these bodies."""
    methods = {
        "should_deactivate(self, global_steps, is_hybrid_active, ctx)": "return is_hybrid_active",
        "deactivate_wait_samples(self, ctx)": "return 5",
        "should_activate_after_step(self, global_steps, is_hybrid_active, ctx)": "return True",
        "request_rebalance(self, global_steps, ctx)": None,
        "update_after_step(self, global_steps, ctx)": None,
    }
    lines = [HEAD + "class Mine(DynamicSchedulePolicyBase):"]
    for method, usual in methods.items():
        body = bodies.get(method.partition("(")[0], usual)
        lines += [] if body is None else [f"    def {method}:", *(f"        {line}" for line in body.splitlines())]
    return "\n".join([*lines, *bodies.get("more", "").splitlines(), ""])


def mine(source: str, params: Mapping[str, Value] | None = None, name: str = "mine.py:Mine") -> PolicyCore:
    return PolicyCore(make_policy(name, params or {}, source))


def join(story: Story, core: PolicyCore) -> PolicyCore:
    story.attach(core, PolicyAttached(name=core.policy.name, params=core.policy.params, mode="active", code="c"))
    return core


def requests(story: Story) -> list[SwitchRequested]:
    return [entry.event for entry in story.entries if isinstance(entry.event, SwitchRequested)]


def rebalances(story: Story) -> int:
    return sum(isinstance(entry.event, RebalanceRequested) and entry.source == "policy" for entry in story.entries)


def varied(story: Story) -> None:
    """Some cycles in which devices are lent or not, waits are long or short, answers come or are missed."""
    story.open_first_boundary()
    for version in range(7):
        if version == 4:
            story.write(DeadlineMissed(key=f"verdict:{version}", seconds=5.0))
        newest = requests(story)[-1:]
        if newest and newest[0].answers == version and newest[0].target == "rollout":
            story.lend(1.5 + version, give_back_at=newest[0].give_back_at, answers=version)
            story.give_back(0.5)
        else:
            story.grant()
        waits = (0.0, 0) if version in (2, 5) else (2.0 + 3 * version, 1 + version % 3)
        story.cycle(*waits)


# --- what is decided


def test_all_recorded_decisions_pass_through_a_file_written_for_verl() -> None:
    result = check_decisions(GOLDEN, verl_deciders("ratio_policies.py", RATIO_POLICIES))
    assert (result.traces, result.boundaries, result.first) == (40, 995, None)


@pytest.mark.parametrize("ratio", [0.2, 0.6])
@pytest.mark.parametrize(("ours", "theirs"), [("default", "AdaptiveRatio"), ("fixed_ratio", "FixedRatio"), ("static_fully_async", "Never")])
def test_on_a_log_it_decides_as_the_built_in_policy_that_it_is_written_after(ours: str, theirs: str, ratio: float) -> None:
    told = []
    params: dict[str, Value] = {"deactivate_ratio": ratio}
    for core in (PolicyCore(create(ours, params)), mine(RATIO_POLICIES, params, f"r.py:{theirs}")):
        story = Story(plan())
        join(story, core)
        varied(story)
        told.append([(event.target, event.answers, event.give_back_at) for event in requests(story)])
    assert told[0] == told[1]
    assert len(told[0]) == 8


def test_verl_calls_in_this_order_and_with_these_durations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    story = Story(plan())
    join(story, mine(TELLING, name="telling.py:Telling"))
    caplog.clear()
    story.open_first_boundary()
    story.lend(3.0, answers=0)
    story.give_back(1.0)
    story.cycle(2.0, 1)
    story.grant()
    story.cycle()
    assert [record.getMessage().partition("prints: ")[2] for record in caplog.records] == [
        "made 0.5 False",
        "should_activate_after_step 0 False 0.0 0.0",
        "request_rebalance 0 0.0",
        "update_after_step 0 3.0 0.0",
        "should_deactivate 0 True 0.0 0.0",
        "deactivate_wait_samples",
        "should_deactivate 0 False 0.0 0.0",
        "should_activate_after_step 1 False 0.0 1.0",
        "update_after_step 1 0.0 1.0",
        "should_deactivate 1 False 0.0 0.0",
        "should_deactivate 1 False 0.0 0.0",
        "should_activate_after_step 2 False 0.0 0.0",
    ]


def test_the_context_has_all_of_verls_fields_and_is_one_object() -> None:
    fields = (
        "required_samples, trigger_parameter_sync_step, step_required_samples, total_generated_samples, expected_samples, buffer_samples, "
        "step_wait_times, step_wait_samples, only_hybrid, last_activate_duration_s, last_deactivate_duration_s"
    )
    tests = "\n".join(
        [
            "if global_steps == 0:",
            "    self.first = ctx",
            "else:",
            f"    seen = [getattr(ctx, name) for name in '{fields}'.split(', ')]",
            "    assert seen == [4, 2, 8, 10, 8, 4.0, [6.0, 0.0], [3, 0], False, 0.0, 0.0], seen",
            "    assert ctx is self.first and type(ctx) is DynamicScheduleContext",
            "return True",
        ]
    )
    story = Story(plan())
    join(story, mine(small(should_activate_after_step=tests)))
    story.open_first_boundary()
    story.grant()
    story.step(6.0, 3)
    story.samples(6)
    story.step()
    assert [event.answers for event in requests(story)] == [0, 1]


def test_it_says_with_the_verdict_for_how_many_samples_it_will_want_the_devices_back() -> None:
    source = small(update_after_step="self.wants = 6 if global_steps else 3", deactivate_wait_samples="return self.wants")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    story.lend(3.0, give_back_at=3, answers=0)
    story.give_back()
    story.cycle()
    assert [(event.answers, event.give_back_at) for event in requests(story)] == [(0, 3), (1, 6)]


def test_it_amends_the_lend_when_what_the_lend_took_changes_the_number() -> None:
    source = small(update_after_step="self.wants = 2 + int(ctx.last_activate_duration_s)", deactivate_wait_samples="return self.wants")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    swing = story.lend(3.0, give_back_at=2, answers=0)
    story.samples(2)
    assert [(event.answers, event.amends, event.give_back_at) for event in requests(story)] == [(0, None, 2), (None, swing, 5)]


def test_one_that_does_not_want_the_devices_back_keeps_them_until_the_batch_is_there() -> None:
    story = Story(plan())
    join(story, mine(small(should_deactivate="return False")))
    story.open_first_boundary()
    assert requests(story)[0].give_back_at == 4


def test_lends_that_the_controller_makes_by_itself_are_not_told() -> None:
    story = Story(plan())
    core = join(story, mine(small(should_activate_after_step="return False", request_rebalance="raise RuntimeError")))
    story.open_first_boundary()
    story.grant()
    swing = story.start_lend(give_back_at=7, reason="starved")
    story.write(SwitchDone(swing=swing, target="rollout", replicas=("h0",)))
    story.samples(2)
    assert [event.amends for event in requests(story)] == [None]
    assert core.policy.give_back_at(core.view) == 5


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ("ray.get(self._rollouter.rebalance_requests.remote())", 1),
        ("result = ray.get([self._rollouter.rebalance_requests.remote()])[0]\nresult.get('server_loads', {}).get('s0')", 1),
        ("if not hasattr(self, '_rollouter') or self._rollouter is None or ctx.expected_samples < 100:\n    return", 0),
        ("print('spread them')", 1),
        ("return True", 1),
        ("return False", 0),
        ("pass", 0),
        ("'''Nothing.'''", 0),
        (None, 0),
    ],
)
def test_a_rebalance_that_it_asks_its_rollouter_for_is_a_recorded_request(body: str | None, asks: int) -> None:
    story = Story(plan())
    join(story, mine(small(**{} if body is None else {"request_rebalance": body})))
    story.open_first_boundary()
    story.lend(answers=0)
    story.samples(2)
    assert rebalances(story) == asks


def test_with_rebalancing_switched_off_it_is_not_asked() -> None:
    story = Story(plan(enable_rebalance=False))
    join(story, mine(small(request_rebalance="raise RuntimeError")))
    story.open_first_boundary()
    story.lend(answers=0)
    assert rebalances(story) == 0


# --- its settings


def test_its_settings_are_the_arguments_of_its_constructor() -> None:
    assert make_policy("r.py:FixedRatio", {}, RATIO_POLICIES).params == {"deactivate_ratio": 0.3, "only_hybrid": None}
    given = make_policy("r.py:FixedRatio", {"deactivate_ratio": 0.9, "only_hybrid": True}, RATIO_POLICIES)
    assert given.params == {"deactivate_ratio": 0.9, "only_hybrid": True}
    assert make_policy(given.name, given.params, RATIO_POLICIES).params == given.params


def test_a_class_is_found_by_the_name_it_registered_too() -> None:
    assert make_policy("r.py:static_fully_async", {}, RATIO_POLICIES).name == "r.py:static_fully_async"


def test_what_verl_passes_to_every_constructor_is_passed_where_there_is_no_default() -> None:
    init = "    def __init__(self, deactivate_ratio, only_hybrid): self.seen = (deactivate_ratio, only_hybrid)"
    assert make_policy("mine.py:Mine", {}, small(more=init)).params == {"deactivate_ratio": 0.3, "only_hybrid": None}


@pytest.mark.parametrize(("standalone", "number"), [((), 8), (("s0",), 4)])
def test_whether_there_are_hybrids_only_is_as_the_replicas_of_the_run(standalone: tuple[str, ...], number: int) -> None:
    story = Story(plan(standalone=standalone))
    join(story, mine(RATIO_POLICIES, {"deactivate_ratio": 0.5}, "r.py:FixedRatio"))
    story.open_first_boundary()
    assert requests(story)[0].give_back_at == number


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"deactivate_ration": 0.4}, "policy r.py:FixedRatio has no setting 'deactivate_ration': did you mean 'deactivate_ratio'"),
        ({"deactivate_ratio": 0.4, "x": 1}, "has no setting 'x'"),
    ],
)
def test_an_unknown_setting_names_the_nearest(params: dict[str, Value], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_policy("r.py:FixedRatio", params, RATIO_POLICIES)


# --- what goes wrong


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + "x = 1 / 0\n", r"mine.py, line 4, in <module>: ZeroDivisionError: division by zero"),
        (HEAD + "class Mine(DynamicSchedulePolicyBase):\n    pass\n", "Can't instantiate abstract class Mine"),
        (HEAD + "class Other(DynamicSchedulePolicyBase):\n    pass\n", "there is no policy Mine in it; its classes: Other"),
        (small(more="    def __init__(self):\n        raise ValueError('no')"), r"line \d+, in __init__: ValueError: no"),
        (small(more="    def __init__(self, size):\n        pass"), "its constructor needs size: set it among the policy's settings"),
        (HEAD.replace("register_policy", "Nothing"), "has no Nothing: it has DynamicScheduleContext, DynamicSchedulePolicyBase"),
        (HEAD + "from verl.trainer import main_ppo\n", "line 4, in <module>"),
        (HEAD + "ray.init()\n", "the stand-in for ray has no init: it has get"),
        (HEAD + "import a_module_of_mine\n", "No module named 'a_module_of_mine'"),
        (HEAD + "import os\nos._exit(3)\n", r"mine.py: its process ended in running the file \(exit code 3\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_line_and_reason(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"policy mine.py:Mine: .*{words}"):
        make_policy("mine.py:Mine", {}, source)


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({"should_activate_after_step": "\nreturn 1 / 0"}, "mine.py, line 11, in should_activate_after_step: ZeroDivisionError"),
        ({"deactivate_wait_samples": "return float('nan')"}, "deactivate_wait_samples returned nan: return a number of samples"),
        ({"deactivate_wait_samples": "return 'many'"}, "deactivate_wait_samples returned 'many'"),
        ({"request_rebalance": "self._rollouter.abort.remote()"}, "the rollouter takes rebalance_requests.remote"),
        ({"request_rebalance": "ray.get(5)"}, "ray.get was given 5"),
        ({"should_activate_after_step": "raise SystemExit"}, "SystemExit"),
    ],
)
def test_a_method_that_raises_is_told_with_its_line(bodies: dict[str, str], words: str) -> None:
    story = Story(plan())
    join(story, mine(small(**bodies)))
    with pytest.raises(PolicyFailed, match=words):
        _lend_at_once(story)


def _lend_at_once(story: Story) -> None:
    story.open_first_boundary()
    story.lend(answers=0)


@pytest.mark.parametrize(
    ("bodies", "question", "words"),
    [
        ({"should_activate_after_step": "while True: pass"}, ("activate", 0, False), "should_activate_after_step took more than 0.3 s"),
        ({"update_after_step": "import time\ntime.sleep(9)"}, ("update", 0), "update_after_step took more than 0.3 s"),
        ({"update_after_step": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"}, ("update", 0), r"\(exit code -9\)"),
    ],
)
def test_a_method_that_takes_too_long_or_ends_the_process_is_named(
    bodies: dict[str, str], question: tuple[str, *tuple[object, ...]], words: str
) -> None:
    process = VerlProcess("mine", "mine.py", small(**bodies), "Mine", call_s=0.3)
    process.ask("make", {}, 4, 2, False)
    with pytest.raises(PolicyFailed, match=words):
        process.ask(*question)
    assert not _is_running(process.pid)
    with pytest.raises(PolicyFailed, match="its process ended"):
        process.ask("ratio")


def test_a_look_ahead_that_hangs_or_raises_costs_no_more_than_the_number() -> None:
    source = small(update_after_step="if ctx.last_activate_duration_s == 0.0:\n    raise RuntimeError")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    story.lend(answers=0)
    assert [event.give_back_at for event in requests(story)] == [4, 5]


def test_what_it_prints_goes_to_the_log_of_the_service_and_not_between_the_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    printing = "print('one\\ntwo')\nimport os, sys\nos.write(1, b'raw')\nsys.stdout.flush()\nfor n in range(900): print(n)\nreturn True"
    story = Story(plan())
    join(story, mine(small(should_activate_after_step=printing)))
    story.open_first_boundary()
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == ["policy mine.py:Mine prints: one", "policy mine.py:Mine prints: two"]
    assert told[-1] == "policy mine.py:Mine prints: 702 more lines, which are left out"
    assert len(requests(story)) == 1


# --- its process


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def _gone(pid: int, within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while _is_running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _is_running(pid)


def test_its_process_ends_when_nobody_needs_the_policy_any_more() -> None:
    process = start("r.py:FixedRatio", RATIO_POLICIES)
    pid = process.pid
    assert _is_running(pid)
    del process
    gc.collect()
    assert _gone(pid)


def test_its_process_dies_with_its_parent() -> None:
    code = (
        "import sys, time; from services.policy.verl import start; "
        "kept = start('r.py:FixedRatio', sys.stdin.read()); print(kept.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(RATIO_POLICIES)
    parent.stdin.close()
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _gone(pid)


def test_neither_verl_nor_ray_is_among_the_modules_of_the_service() -> None:
    make_policy("r.py:FixedRatio", {}, RATIO_POLICIES)
    assert not {"ray", "verl"} & set(sys.modules)


# --- its state


def core_of(theirs: str = "AdaptiveRatio") -> PolicyCore:
    return mine(RATIO_POLICIES, {"deactivate_ratio": 0.6}, f"r.py:{theirs}")


def test_a_restarted_policy_goes_on_as_the_one_before_would_have() -> None:
    steady, restarted = Story(plan()), Story(plan())
    for story in (steady, restarted):
        join(story, core_of())
        varied(story)
    join(restarted, core_of())
    for story in (steady, restarted):
        story.cycle(5.0, 2)
        story.grant()
        story.cycle(5.0, 2)
    assert requests(restarted) == requests(steady)
    assert requests(steady)[-1].give_back_at != requests(steady)[0].give_back_at


def test_a_frozen_one_goes_on_in_a_process_of_its_own_from_every_entry_on() -> None:
    story = Story(plan())
    join(story, core_of())
    varied(story)
    whole = core_of()
    rebuild(whole, story.entries)
    for cut in range(20, len(story.entries), 61):
        first, second = core_of(), core_of()
        rebuild(first, story.entries[:cut])
        if first.view.is_open:
            first.policy.verdict(first.view)
        thaw_into(second, freeze(first))
        for entry in story.entries[cut:]:
            second.apply(entry)
        assert freeze(second) == freeze(whole)
        assert second.policy.verdict(second.view) == whole.policy.verdict(whole.view)


def test_asking_changes_nothing() -> None:
    story = Story(plan())
    core = core_of()
    told: list[bytes] = []

    def ask(entry: Entry) -> None:
        core.apply(entry)
        if core.view.is_open:
            before = freeze(core)
            assert [core.policy.verdict(core.view) for _ in range(2)] == [core.policy.verdict(core.view)] * 2
            core.policy.give_back_at(core.view)
            assert freeze(core) == before
            told.append(before)

    story.listeners.append(ask)
    for entry in story.entries:
        ask(entry)
    varied(story)
    assert len(told) > 7


def test_a_setting_that_changes_while_a_boundary_is_open_leads_to_one_state() -> None:
    story = Story(plan())
    asked, silent = core_of("FixedRatio"), core_of("FixedRatio")

    def take(entry: Entry) -> None:
        for core in (asked, silent):
            core.apply(entry)
        if asked.view.is_open:
            asked.policy.verdict(asked.view)

    story.listeners.append(take)
    for entry in story.entries:
        take(entry)
    story.open_first_boundary()
    story.write(SettingChanged(name="staleness_threshold", value=1.0))
    story.write(DeadlineMissed(key="verdict:0", seconds=5.0))
    story.cycle()
    assert asked.policy.verdict(asked.view) == silent.policy.verdict(silent.view)
    assert freeze(asked) == freeze(silent)


def test_a_shadow_says_what_it_would_have_requested() -> None:
    story = Story(plan())
    join(story, PolicyCore(create("static_fully_async", {})))
    shadow = PolicyCore(make_policy("r.py:AdaptiveRatio", {"deactivate_ratio": 0.6}, RATIO_POLICIES), "shadow", "theirs")
    attached = PolicyAttached(name=shadow.policy.name, params=shadow.policy.params, mode="shadow", code="c", label="theirs")
    story.attach(shadow, attached)
    story.open_first_boundary()
    story.grant()
    story.cycle(8.0, 3)
    shadows = [(entry.source, entry.event.target) for entry in story.entries if isinstance(entry.event, ShadowVerdict)]
    assert shadows == [("policy:theirs", "rollout")] * 2


def test_the_digest_of_its_code_covers_the_file_and_what_runs_it() -> None:
    def changed(change: Callable[[str], str]) -> bool:
        return policy_code("r.py:Never", change(RATIO_POLICIES)) != policy_code("r.py:Never", RATIO_POLICIES)

    assert changed(lambda text: text + "\n")
    assert not changed(str)
    assert policy_code("r.py:Never", RATIO_POLICIES) != policy_code("default")
