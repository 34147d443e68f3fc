"""A policy of the user's, made from the text of its file: what works, and how what does not is told."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import MAX_POLICY_SOURCE_BYTES, Value
from bus.snapshot import attributes, freeze, thaw
from policies.base import PolicyBase, keep, lend
from policies.default import Default
from policies.protocol import Verdict
from policies.view import ScheduleView
from services.policy.core import PolicyCore
from services.policy.making import make_policy, policy_code
from services.policy.source import file_and_class, is_in_file, read_source, short_name
from tests.policies.logs import Story, plan

EXAMPLE = Path(__file__).parents[3] / "examples" / "own" / "patient_policy.py"
BASE = "from policies.base import PolicyBase, keep\n"
ANSWER = "    def verdict(self, view):\n        return keep('x')\n"
MINIMAL = f"{BASE}class Mine(PolicyBase):\n{ANSWER}"
WITH_MEMORY = """
from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from policies.base import PolicyBase, keep
from policies.view import ScheduleView


class Mood(Enum):
    CALM = "calm"


@dataclass
class Memory:
    waits: list[float] = field(default_factory=list)


class Mine(PolicyBase):
    def __init__(self, share: Annotated[float, Field(ge=0, le=1)] = 0.5, way: Literal["up", "down"] = "up", at: int | None = None) -> None:
        self.share, self.way, self.at = share, way, at
        self.memory = Memory()

    def verdict(self, view: ScheduleView):
        return keep(Mood.CALM.value, waits=len(self.memory.waits))

    def decided(self, view: ScheduleView) -> None:
        self.memory.waits.append(1.0)
"""


def refusal(source: str, params: dict[str, Value] | None = None, name: str = "mine.py:Mine") -> str:
    with pytest.raises(ConfigError) as caught:
        make_policy(name, params or {}, source)
    return str(caught.value)


# --- what works


def test_the_example_of_the_tutorial_is_made_with_its_settings_and_records_all_of_them() -> None:
    name = f"{EXAMPLE}:Patient"
    policy = make_policy(name, {"cycles": 3}, read_source(name))
    assert (policy.name, policy.params) == (name, {"cycles": 3, "share": 0.5})
    assert make_policy(name, policy.params, read_source(name)).params == policy.params
    assert len(EXAMPLE.read_text().splitlines()) <= 30


def test_the_example_lends_when_the_trainer_has_waited_twice_in_a_row() -> None:
    story = Story(plan())
    core = PolicyCore(make_policy("patient.py:Patient", {}, EXAMPLE.read_text()))
    story.listeners.append(core.apply)
    for entry in story.entries:
        core.apply(entry)
    story.open_first_boundary()
    story.grant()
    targets = []
    for lacking in (2, 0, 1, 3):
        story.cycle(1.0, lacking)
        decision = core.decide()
        assert decision is not None
        targets.append(decision.model_dump()["target"])
        story.grant()
    assert targets == ["train", "train", "train", "rollout"]


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    page = (EXAMPLE.parents[2] / "docs" / "write-a-policy.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```" in page


def test_a_built_in_policy_needs_no_text() -> None:
    assert isinstance(make_policy("default", {"deactivate_ratio": 0.6}), Default)
    assert (is_in_file("default"), read_source("default"), short_name("default")) == (False, "", "default")


def test_a_class_without_settings_and_one_that_is_a_data_class_are_policies() -> None:
    assert make_policy("mine.py:Mine", {}, MINIMAL).params == {}
    frozen = f"from dataclasses import dataclass\n{BASE}@dataclass(frozen=True)\nclass Mine(PolicyBase):\n    share: float = 0.5\n{ANSWER}"
    assert make_policy("mine.py:Mine", {"share": 1}, frozen).params == {"share": 1.0}


def test_settings_may_have_limits_choices_and_none() -> None:
    policy = make_policy("mine.py:Mine", {"way": "down"}, WITH_MEMORY)
    assert policy.params == {"share": 0.5, "way": "down", "at": None}
    assert attributes(policy)["way"] == "down"


def test_a_policy_with_data_classes_of_its_own_is_written_down_and_read_back() -> None:
    core = PolicyCore(make_policy("mine.py:Mine", {}, WITH_MEMORY))
    core.policy.decided(core.view)
    frozen = freeze(core)
    again = thaw(frozen, PolicyCore(make_policy("mine.py:Mine", {}, WITH_MEMORY)))
    assert freeze(again) == frozen
    assert attributes(again.policy)["memory"] == attributes(core.policy)["memory"]


def test_the_same_text_is_the_same_class_and_another_text_another_one() -> None:
    one, same, other = (make_policy("mine.py:Mine", {}, text) for text in (MINIMAL, MINIMAL, f"{MINIMAL}\n# changed\n"))
    assert type(one) is type(same)
    assert type(one) is not type(other)


def test_a_traceback_shows_the_users_path_and_the_line_that_ran_though_the_file_is_not_there() -> None:
    policy = make_policy("far/mine.py:Mine", {}, MINIMAL.replace("return keep('x')", "return 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        policy.verdict(ScheduleView())
    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "far/mine.py", line 4, in verdict\n    return 1 / 0' in shown


def test_what_a_policy_does_not_say_has_a_meaning() -> None:
    class Silent(PolicyBase):
        pass

    story, policy = Story(plan()), Silent()
    view = ScheduleView()
    story.listeners.append(view.apply)
    view.apply(story.entries[0])
    assert (policy.name, policy.params) == ("Silent", {})
    assert (policy.extra(view), policy.rebalance(view), policy.give_back_at(view)) == (None, False, 4)
    story.open_first_boundary()
    story.lend(give_back_at=7, answers=0)
    assert policy.give_back_at(view) == 7
    with pytest.raises(NotImplementedError, match=r"Silent has no method verdict"):
        policy.verdict(view)
    assert lend(3, "why", a=1.0) == Verdict("rollout", 3, "why", {"a": 1.0})
    assert keep("why") == Verdict("train", 0, "why")


# --- what does not


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"import time\n{MINIMAL}", "mine.py, line 1: imports time: seconds come from the view"),
        (
            f"{BASE}\ndef f():\n    from random import random\n",
            "line 4: imports random.random: a policy must say the same when it is replayed",
        ),
        (f"from helpers import x\n{MINIMAL}", "imports helpers.x: whatever a policy uses must be in its file"),
        (f"from . import x\n{MINIMAL}", "line 1: imports"),
        (f"import services.policy\n{MINIMAL}", "line 1: imports services.policy"),
        (MINIMAL.replace("keep('x')", "open('f')"), "line 4: uses open: a policy reads nothing but the log"),
        (MINIMAL.replace("keep('x')", "print(1)"), "uses print: put the numbers into the verdict's evidence"),
        (f"import os\nimport random\n{MINIMAL}", "It may import __future__, bus.books"),
        (f"import os\nimport random\n{MINIMAL}", "also line 2"),
        ("def f(:\n", "mine.py, line 1: invalid syntax"),
        ("x = 1\n\0", "null bytes"),
        ("", "mine.py is empty, or its text is not recorded"),
        (f"{BASE}x = 1 / 0\n", 'running mine.py failed:\nTraceback (most recent call last):\n  File "mine.py", line 2'),
        (f"{BASE}class Mien(PolicyBase):\n{ANSWER}", "mine.py has no class Mine: did you mean Mien? It has Mien"),
        ("x = 1\n", "mine.py has no class Mine: it has none at all"),
        ("\nclass Mine:\n    pass\n", "mine.py, line 2: Mine is no policy: write `class Mine(PolicyBase):`"),
        (f"{BASE}class Mine(PolicyBase):\n    pass\n", "mine.py, line 2: Mine has no method `verdict(self, view)`"),
        (MINIMAL + "    def __init__(self, share): ...\n", "the argument share of Mine.__init__ needs a type and a default"),
        (MINIMAL + "    def __init__(self, *shares): ...\n", "the argument shares of Mine.__init__ cannot be set by name"),
        (MINIMAL + "    def __init__(self, a: 'Nothing' = 1): ...\n", "the arguments of Mine.__init__ cannot be read: name 'Nothing'"),
        (MINIMAL + "    def __init__(self, a: list[int] = [1]): ...\n", "a is [1]: a setting is a text, a number, true, false or null"),
        (MINIMAL + "    def __init__(self, a: int = 1):\n        1 / 0\n", "Mine cannot be made:\nTraceback"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_with_its_line_and_what_to_do(source: str, said: str) -> None:
    assert said in refusal(source)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"shear": 0.5}, "has no setting 'shear': did you mean 'share'? It has share, way, at"),
        ({"share": 2}, "policy mine.py:Mine: share is 2: Input should be less than or equal to 1"),
        ({"way": "left"}, "way is 'left': Input should be 'up' or 'down'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_value(params: dict[str, Value], said: str) -> None:
    assert said in refusal(WITH_MEMORY, params)


def test_a_setting_of_a_policy_without_settings_is_refused() -> None:
    assert "has no setting 'a', nor any other" in refusal(MINIMAL, {"a": 1})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py", "say which class of the file it is, mine.py:ClassName"),
        ("mine.txt:Mine", "or path/file.py:ClassName"),
        ("a/b", "a/b:Cla"),
    ],
)
def test_a_name_that_is_neither_is_told_how_to_write_it(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        file_and_class(name)


def test_a_file_that_cannot_be_read_or_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    with pytest.raises(ConfigError, match=r"mine.py cannot be read: No such file"):
        read_source(f"{path}:Mine")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_source(f"{path}:Mine")
    path.write_text("#" * (MAX_POLICY_SOURCE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"has 65537 bytes, a policy's file may have 65536"):
        read_source(f"{path}:Mine")


# --- the digest of its code


def test_the_digest_covers_the_text_and_what_it_imports() -> None:
    digests = [
        policy_code("mine.py:Mine", MINIMAL),
        policy_code("mine.py:Mine", f"{MINIMAL}# changed\n"),
        policy_code("mine.py:Mine", f"import policies.default\n{MINIMAL}"),
        policy_code("default"),
    ]
    assert len(set(digests)) == len(digests)
    assert policy_code("elsewhere/mine.py:Mine", MINIMAL) == digests[0]
