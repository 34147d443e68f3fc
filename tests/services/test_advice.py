"""What is legal and seldom meant, and settings of the learner that depend on other sections."""

from __future__ import annotations

import pytest

from bus.errors import ConfigError
from services.advice import advice
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine
from services.plan import plan_run
from services.planned import config_of


def config(**sections: object) -> RunConfig:
    return make_config({"async_training": {"total_steps": 10}} | sections, "test")


def test_the_defaults_need_no_advice() -> None:
    assert advice(config()) == []


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_groups_of_one_have_nothing_to_compare(estimator: str) -> None:
    (text,) = advice(config(rollout={"n": 1}, actor={"adv_estimator": estimator}))
    assert f"rollout.n is 1 and actor.adv_estimator is {estimator}" in text
    assert "Set rollout.n to at least 2" in text


def test_groups_of_one_are_compared_with_the_batch_by_reinforce_plus_plus() -> None:
    assert advice(config(rollout={"n": 1}, actor={"adv_estimator": "reinforce_plus_plus"})) == []


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_answers_that_are_sampled_from_a_cut_distribution_are_of_another_one_than_the_trainers(cut: dict[str, object]) -> None:
    (text,) = advice(config(rollout=cut))
    assert "Set rollout.top_p to 1 and rollout.top_k to 0" in text
    assert advice(config(evaluation=cut)) == []


def test_the_learner_knows_the_longest_answer_of_the_plan() -> None:
    plan = plan_run(config(actor={"overlong_buffer_len": 2}), "r1", Machine((0, 1)))
    assert config_of(plan).actor.max_response_length == plan.max_response_length
    longer = plan_run(config(model={"path": "scripted"}, rollout={"engine": "scripted", "max_response_length": 77}), "r1", Machine((0, 1)))
    assert config_of(longer).actor.max_response_length == 77


def test_the_longest_answer_is_not_set_twice() -> None:
    with pytest.raises(ConfigError, match=r"actor.max_response_length is 5: it is set by rollout.max_response_length"):
        config(actor={"max_response_length": 5})


def test_an_overlong_buffer_over_the_longest_answer_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match=r"overlong_buffer_len is 900, answers have at most \d+ tokens"):
        plan_run(config(actor={"overlong_buffer_len": 900}), "r1", Machine((0, 1)))
