"""What ranks tell each other comes as it was sent, and what they must have in common is compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.learner.config import LearnerConfig
from services.learner.passes import ScoredAnswer
from services.learner.sharded.agreement import HOST, disagreement, facts_here, turns_of
from services.learner.sharded.messages import (
    Begin,
    BeginCycle,
    Build,
    Command,
    End,
    Gather,
    Keep,
    Load,
    Move,
    Reply,
    Train,
    Update,
    pack_command,
    pack_facts,
    pack_reply,
    unpack_command,
    unpack_facts,
    unpack_reply,
)
from services.learner.sharded.torchrun import Torchrun
from services.learner.tally import TallyParts, joined
from services.samples import VersionSpan

ANSWER = ScoredAnswer(3, (1, 2), (5, 6), (-0.1, -math.pi), 1 / 3, 1e-7, (VersionSpan(2, 1), VersionSpan(3, 1)))
COMMANDS: list[Command] = [
    Begin("{}", 8, True, ""),
    Build(0, 2),
    Train(3, 1e-6, 2, [[ANSWER], [ANSWER, ANSWER]]),
    Gather("model", "lm_head.weight"),
    Load("/somewhere"),
    Keep(use=True),
    BeginCycle(),
    Move(home=False),
    End(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_arrives_as_it_was_sent(command: Command) -> None:
    assert unpack_command(pack_command(command)) == command


def test_a_reply_arrives_as_it_was_sent() -> None:
    parts = TallyParts({"a": 0.1}, {"b": (1.0, 2.0)}, {"c": math.inf}, {"d": -1.0})
    reply = Reply("LearnerError", "why", [Update(parts, 0.3, {"optimizer": 0.5})])
    received = unpack_reply(pack_reply(reply))
    assert received.updates == reply.updates
    assert (received.error, received.text) == (reply.error, reply.text)


def test_measures_of_several_ranks_are_joined_as_if_one_had_seen_all_tokens() -> None:
    one = TallyParts({"mean": 3.0}, {"some": (4.0, 1.0)}, {"total": 0.5}, {"highest": 1.0})
    other = TallyParts({"mean": 5.0}, {"some": (2.0, 2.0)}, {"total": 0.25}, {"highest": 2.0})
    idle = TallyParts({}, {}, {}, {})
    assert joined([one, idle, other], 4) == {"mean": 2.0, "some": 2.0, "total": 0.75, "highest": 2.0}
    assert math.isnan(joined([TallyParts({"mean": math.inf}, {}, {}, {}), TallyParts({"mean": -math.inf}, {}, {}, {})], 4)["mean"])


def test_ranks_that_differ_in_a_setting_are_told_which_and_both_values(tiny_model: Path) -> None:
    config = LearnerConfig(model=str(tiny_model), ranks=2, lr=1e-3)
    same = facts_here(config.model_copy(update={"num_threads": 3}), 2)
    other = facts_here(config.model_copy(update={"lr": 1e-4}), 2)
    assert disagreement([facts_here(config, 2), same, facts_here(None, 2)]) == ""
    text = disagreement([facts_here(config, 2), same, other])
    assert "rank 2 of 3" in text
    assert "actor.lr is 0.0001 there and 0.001 on rank 0" in text


def test_ranks_with_another_model_code_or_version_do_not_agree(tiny_model: Path, tmp_path: Path) -> None:
    config = LearnerConfig(model=str(tiny_model), ranks=2)
    facts = facts_here(config, 2)
    assert "missing" in disagreement([facts, facts_here(config.model_copy(update={"model": str(tmp_path)}), 2)])
    for name in ("torch", "code of the learner", "number of ranks"):
        assert name in disagreement([facts, unpack_facts(pack_facts(facts)) | {name: "other"}])
    assert disagreement([facts, dict(facts) | {HOST: "elsewhere"}]) == ""


def test_ranks_of_one_machine_take_turns() -> None:
    assert turns_of([{HOST: "a"}, {HOST: "b"}, {HOST: "a"}, {HOST: "b"}, {HOST: "a"}]) == [0, 0, 1, 1, 2]


def test_a_process_knows_whether_torchrun_started_it_and_refuses_another_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Torchrun.here() is None
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    here = Torchrun.here()
    assert here == Torchrun(3, 4, 1)
    with pytest.raises(ConfigError, match=r"actor\.ranks is 2, and 4 ranks were started"):
        here.check(LearnerConfig(model="x", ranks=2))
