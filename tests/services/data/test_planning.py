"""Own data and an own model at planning: what the plan gets, and each mistake with what is said about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config_file import make_config
from services.data.planning import plan_data
from services.devices import Machine
from services.launcher.folders import record_reward
from services.plan import plan_run
from services.planned import config_of
from services.prompts import make_prompts
from tests.services.data.folders import ASSISTANT, BEGIN, END, USER, make_folder, text_of, write_lines

ROWS: list[dict[str, object]] = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(10)]
TWO_CORES = Machine((0, 1))
Settings = dict[str, object]


class Given:
    """A model folder, a data file, and settings that name them."""

    def __init__(self, folder: Path) -> None:
        self.model = make_folder(folder / "model")
        self.train = folder / "train.jsonl"
        self.lines(ROWS)
        self.data: Settings = {"train_files": str(self.train), "reward": "number", "seed": 5}
        self.rollout: Settings = {}
        self.timing: Settings = {"total_steps": 10, "ppo_mini_batch_size": 4}

    def lines(self, rows: Sequence[object]) -> None:
        write_lines(self.train, rows)

    def plan(self) -> RunPlanned:
        sections = {"model": {"path": str(self.model)}, "data": self.data, "rollout": self.rollout, "async_training": self.timing}
        return plan_run(make_config(sections, "test"), "r1", TWO_CORES)

    def refusal(self) -> str:
        with pytest.raises(ConfigError) as caught:
            self.plan()
        return str(caught.value)

    def prompts(self, count: int) -> list[str]:
        plan = self.plan()
        source = make_prompts(config_of(plan), plan)
        return [text_of(source.prompt(number).tokens) for number in range(count)]


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


def test_the_plan_says_how_much_data_there_is_and_what_it_was(given: Given) -> None:
    plan = given.plan()
    assert (plan.num_prompts, plan.num_validation, plan.max_prompt_length, plan.max_response_length) == (None, 0, 512, 512)
    assert (plan.environment["train_prompts"], plan.environment["train_prompts_left_out"]) == (10, 0)
    assert {"train_digest", "tokenizer_digest"} <= set(plan.environment)
    assert config_of(plan).rollout.stop_token_ids == (END,)
    assert plan_run(config_of(plan), "r1", TWO_CORES) == plan


@pytest.mark.parametrize(
    ("timing", "num_prompts", "steps"),
    [
        ({}, 10, 3),
        ({"total_epochs": 3}, 30, 8),
        ({"num_prompts": 6}, 6, 2),
        ({"num_prompts": 6, "total_epochs": 2}, 12, 3),
        ({"total_steps": 100}, None, 100),
        ({"total_steps": 100, "total_epochs": 3}, 30, 100),
        ({"total_steps": 100, "num_prompts": 6}, 6, 100),
        ({"tail": "drop"}, 10, 2),
    ],
)
def test_epochs_and_steps_follow_from_the_number_of_lines(given: Given, timing: Settings, num_prompts: int | None, steps: int) -> None:
    given.timing = {"ppo_mini_batch_size": 4} | timing
    plan = given.plan()
    assert (plan.num_prompts, plan.total_steps) == (num_prompts, steps)
    assert plan_run(config_of(plan), "r1", TWO_CORES) == plan


def test_epochs_are_shuffled_each_in_its_own_way_and_again_alike(given: Given) -> None:
    texts = {f"<|begin|>{row['prompt']}" for row in ROWS}
    first, again = given.prompts(30), given.prompts(30)
    assert first == again
    assert all(set(first[start : start + 10]) == texts for start in (0, 10, 20))
    assert len({tuple(first[start : start + 10]) for start in (0, 10, 20)}) == 3
    given.data["seed"] = 6
    assert given.prompts(30) != first
    given.data["shuffle"] = False
    assert given.prompts(20) == 2 * [f"<|begin|>{row['prompt']}" for row in ROWS]


def test_num_prompts_takes_the_first_lines(given: Given) -> None:
    given.timing["num_prompts"] = 3
    assert set(given.prompts(3)) == {f"<|begin|>{row['prompt']}" for row in ROWS[:3]}


def test_text_stays_as_it_is_and_a_conversation_gets_the_chat_template(given: Given) -> None:
    chat = [{"role": "user", "content": "hi"}]
    given.lines([{"prompt": "hi", "answer": "1"}, {"prompt": chat, "answer": "1"}])
    given.data["shuffle"] = False
    plan = given.plan()
    source = make_prompts(config_of(plan), plan)
    hi = tuple(source.prompt(0).tokens[1:])
    assert source.prompt(0).tokens == (BEGIN, *hi)
    assert source.prompt(1).tokens == (BEGIN, USER, *hi, END, ASSISTANT)
    given.data["apply_chat_template"] = "always"
    plan = given.plan()
    source = make_prompts(config_of(plan), plan)
    assert source.prompt(0).tokens == source.prompt(1).tokens == (BEGIN, USER, *hi, END, ASSISTANT)


def test_the_template_gets_the_variables_that_are_set(given: Given) -> None:
    make_folder(given.model, "{{ messages[0].content }}{% if enable_thinking %}!{% endif %}")
    given.lines([{"prompt": [{"role": "user", "content": "hi"}], "answer": "1"}])
    given.data["apply_chat_template_kwargs"] = {"enable_thinking": True}
    assert given.prompts(1) == ["hi!"]


def test_a_validation_set_is_read_in_the_order_of_its_file(given: Given, tmp_path: Path) -> None:
    given.data["val_files"] = [write_lines(tmp_path / "val.jsonl", [{"prompt": f"v{number}", "answer": number} for number in range(4)])]
    plan = given.plan()
    source = make_prompts(config_of(plan), plan)
    assert plan.num_validation == 4
    assert [text_of(source.validation(number).tokens) for number in range(4)] == [f"<|begin|>v{number}" for number in range(4)]
    assert source.validation(3).reference == "3"
    given.data["val_prompts"] = 2
    assert given.plan().num_validation == 2
    given.data["val_prompts"] = 9
    assert "data.val_prompts is 9, and data.val_files has 4 prompts: set it to 4 or less, or leave it unset" in given.refusal()


def test_a_built_in_task_has_a_validation_set_of_its_own() -> None:
    config = make_config({"async_training": {"total_steps": 1}, "data": {"seed": 3}}, "test")
    plan = plan_run(config, "r1", TWO_CORES)
    source = make_prompts(config_of(plan), plan)
    assert plan.num_validation == 64
    validation = [source.validation(number) for number in range(64)]
    long = [prompt for prompt in validation if len(prompt.tokens) > 12]
    assert not {prompt.tokens for prompt in long} & {source.prompt(number).tokens for number in range(1000)}
    few = make_config({"async_training": {"total_steps": 1}, "data": {"val_prompts": 5}}, "test")
    assert plan_run(few, "r1", TWO_CORES).num_validation == 5


def test_the_epochs_of_a_built_in_task_have_the_same_prompts_in_another_order() -> None:
    config = make_config({"async_training": {"num_prompts": 20, "total_epochs": 2}}, "test")
    plan = plan_run(config, "r1", TWO_CORES)
    source = make_prompts(config_of(plan), plan)
    first, second = ([source.prompt(start + number) for number in range(20)] for start in (0, 20))
    assert first != second
    assert sorted(prompt.tokens for prompt in first) == sorted(prompt.tokens for prompt in second)


def test_prompts_over_the_limit_are_a_mistake_that_names_the_first(given: Given) -> None:
    given.lines([*ROWS, *({"prompt": "x" * 40, "answer": "1"} for _ in range(9))])
    given.rollout = {"max_prompt_length": 20}
    said = given.refusal().splitlines()
    assert said == [
        f"data.train_files: {given.train}, line 11: the prompt has 41 tokens, rollout.max_prompt_length is 20 "
        "(also line 12, line 13, line 14, line 15)",
        "data.train_files: raise rollout.max_prompt_length, or leave such prompts out with data.filter_overlong_prompts: true",
        "data.train_files: there may be more: reading ended here",
    ]


def test_prompts_over_the_limit_are_left_out_and_counted_when_that_is_asked_for(given: Given) -> None:
    given.lines([{"prompt": "x" * 40, "answer": "1"}, *ROWS, {"prompt": "y" * 40, "answer": "1"}])
    given.rollout = {"max_prompt_length": 20}
    given.data["filter_overlong_prompts"] = True
    plan = given.plan()
    assert (plan.environment["train_prompts"], plan.environment["train_prompts_left_out"]) == (10, 2)
    assert set(given.prompts(10)) == {f"<|begin|>{row['prompt']}" for row in ROWS}
    given.rollout = {"max_prompt_length": 3}
    assert "data.train_files: all 12 prompts have over rollout.max_prompt_length = 3 tokens" in given.refusal()


def test_broken_lines_and_missing_columns_are_told_at_planning(given: Given) -> None:
    given.lines([ROWS[0], "{", {"question": "q", "answer": "1"}])
    words = given.refusal()
    assert f"data.train_files: {given.train}, line 2: no JSON" in words
    assert f"data.train_files: {given.train}, line 3: there is no column prompt, only question, answer" in words
    given.lines([])
    assert "there is not one line in it" in given.refusal()
    given.train.unlink()
    assert f"data.train_files: there is no {given.train}" in given.refusal()


def test_references_that_the_reward_cannot_use_are_told_by_line(given: Given) -> None:
    given.lines([ROWS[0], {"prompt": "p", "answer": "about 4"}])
    assert "line 2: the reference 'about 4' is no number: use the reward exact" in given.refusal()
    given.data["reward"] = "exact"
    given.plan()


def test_more_prompts_than_lines_are_refused_with_both_numbers(given: Given) -> None:
    given.timing["num_prompts"] = 11
    assert "async_training.num_prompts is 11, and data.train_files has 10 prompts" in given.refusal()


def test_a_conversation_without_a_chat_template_is_refused_once_with_what_to_do(given: Given) -> None:
    make_folder(given.model / "..", template=None)
    (given.model / "chat_template.jinja").unlink()
    given.lines([{"prompt": [{"role": "user", "content": "hi"}], "answer": "1"}] * 9)
    words = given.refusal()
    assert f"the tokenizer of {given.model} has no chat template: take an instruct model, put a chat_template.jinja" in words
    assert len(words.splitlines()) == 1


def test_a_template_that_refuses_a_line_is_told_with_it(given: Given) -> None:
    make_folder(given.model, "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}{{ messages[0].content }}")
    one = {"role": "user", "content": "hi"}
    given.lines([{"prompt": [one], "answer": "1"}, {"prompt": [one, one], "answer": "1"}])
    assert "line 2: the chat template in" in given.refusal()
    assert "refuses the messages: one message only" in given.refusal()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config.json": None}, "there is no config.json in it; name a Hugging Face model folder"),
        ({"config.json": "{"}, "config.json cannot be read: "),
        ({"config.json": "[]"}, "config.json does not hold an object"),
        ({"config.json": "{}"}, "its config.json names no model_type"),
        ({"model.safetensors": None}, "there are no *.safetensors in it; save the model with save_pretrained"),
        ({"tokenizer.json": None}, "tokenizer.json: data from files needs the tokenizer in this form; AutoTokenizer.from_pretrained"),
        ({"tokenizer.json": "{}"}, "tokenizer.json cannot be read: "),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json cannot be read: "),
    ],
)
def test_a_folder_that_is_no_model_is_refused_with_what_is_missing(given: Given, change: dict[str, str | None], words: str) -> None:
    for name, text in change.items():
        (given.model / name).unlink()
        if text is not None:
            (given.model / name).write_text(text)
    assert words in given.refusal()
    assert str(given.model) in given.refusal()


def test_a_folder_that_is_not_there_is_refused_and_a_name_of_the_hub_told_how_to_get(given: Given) -> None:
    given.model = Path("Qwen/Qwen3-0.6B")
    assert "model.path is Qwen/Qwen3-0.6B: there is no folder" in given.refusal()
    assert "`hf download NAME --local-dir FOLDER`" in given.refusal()


@pytest.mark.parametrize("path", ["builtin", "scripted"])
def test_files_need_a_model_with_a_tokenizer(given: Given, path: str) -> None:
    given.model = Path(path)
    given.rollout = {"engine": "scripted"}
    assert f"data.train_files is set and model.path is {path}: prompts from files are read by a model's tokenizer" in given.refusal()


def test_a_tokenizer_with_more_ids_than_the_model_has_embeddings_is_refused_with_both(given: Given) -> None:
    make_folder(given.model, config={"vocab_size": 250})
    assert "has token ids up to 259, the model's embeddings have 250 rows" in given.refusal()
    make_folder(given.model, config={"vocab_size": 9, "text_config": {"vocab_size": 260}})
    given.plan()


def test_a_model_with_fewer_embeddings_than_a_built_in_task_has_tokens_is_refused_with_both(given: Given) -> None:
    given.data = {"task": "sorting"}
    given.plan()
    make_folder(given.model, config={"vocab_size": 9})
    assert "has embeddings for 9 tokens, task sorting has 16" in given.refusal()


def test_an_end_of_answers_must_be_known(given: Given) -> None:
    make_folder(given.model, end=None)
    assert "names a token that ends an answer (eos_token, eos_token_id): set rollout.stop_token_ids" in given.refusal()
    given.rollout = {"stop_token_ids": [3]}
    assert config_of(given.plan()).rollout.stop_token_ids == (3,)


@pytest.mark.parametrize(
    ("config", "generation", "stop"),
    [
        ({"eos_token_id": 7}, None, (7, END)),
        ({"eos_token_id": 7}, {"eos_token_id": [8, END]}, (8, END)),
        ({}, {"eos_token_id": 9}, (9, END)),
        ({"eos_token_id": None}, {}, (END,)),
    ],
)
def test_answers_end_at_the_models_and_the_tokenizers_end_tokens(
    given: Given, config: Settings, generation: Settings | None, stop: tuple[int, ...]
) -> None:
    make_folder(given.model, config=config)
    if generation is not None:
        (given.model / "generation_config.json").write_text(json.dumps(generation))
    assert config_of(given.plan()).rollout.stop_token_ids == stop


def test_lengths_must_fit_the_model(given: Given) -> None:
    make_folder(given.model, config={"max_position_embeddings": 600})
    assert "is 512 + 512, the model in" in given.refusal()
    assert "has room for 600 tokens: set them to less" in given.refusal()
    given.rollout = {"max_prompt_length": 300, "max_response_length": 300}
    given.plan()


@pytest.mark.parametrize("changed", ["data", "validation", "tokenizer", "template"])
def test_what_has_changed_since_planning_is_noticed_at_the_next_start(given: Given, tmp_path: Path, changed: str) -> None:
    validation = tmp_path / "val.jsonl"
    given.data["val_files"] = write_lines(validation, ROWS)
    plan = given.plan()
    make_prompts(config_of(plan), plan)
    match changed:
        case "data":
            given.lines([*ROWS[:-1], {"prompt": "9+9=", "answer": "19"}])
        case "validation":
            write_lines(validation, ROWS[:-1])
        case "tokenizer":
            (given.model / "tokenizer_config.json").write_text("{}")
        case _:
            (given.model / "chat_template.jinja").write_text("{{ messages }}")
    names = {"data": "data.train_files", "validation": "data.val_files"}
    with pytest.raises(ConfigError, match=rf"{names.get(changed, 'the tokenizer in model.path')}: not what the run was planned with"):
        make_prompts(config_of(plan), plan)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (None, "data.reward is not set: prompts from files need one: exact, number, math_verify, or path/file.py:function"),
        ("nubmer", "did you mean number?"),
        ("sorting", "scores the tokens of its own task; the prompts are from files: use exact, number"),
        ("missing.py:reward", "missing.py cannot be read: No such file or directory"),
        ("{folder}/notes.txt:reward", "notes.txt is no Python file: write path/file.py:function"),
        ("{folder}/broken.py:reward", "SyntaxError: "),
        ("{folder}/mine.py:rewrd", "mine.py has no function rewrd, only reward"),
    ],
)
def test_a_reward_that_cannot_be_used_is_told_at_planning(given: Given, tmp_path: Path, reward: str | None, words: str) -> None:
    (tmp_path / "notes.txt").write_text("reward")
    (tmp_path / "broken.py").write_text("def reward(:\n")
    (tmp_path / "mine.py").write_text("def reward(prompt, answer, reference):\n    return 1.0\n")
    given.data["reward"] = None if reward is None else reward.format(folder=tmp_path)
    if reward is None:
        del given.data["reward"]
    assert words in given.refusal()


def test_a_reward_of_a_file_is_in_the_plan_by_its_place_and_digest_and_its_source_with_the_run(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def reward(prompt, answer, reference):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    given.data |= {"reward": "mine.py:reward", "train_files": "train.jsonl"}
    plan = given.plan()
    data = config_of(plan).data
    assert (data.reward, data.train_files) == (f"{tmp_path}/mine.py:reward", (f"{tmp_path}/train.jsonl",))
    assert isinstance(plan.environment["reward_digest"], str)
    record_reward(data.reward, tmp_path / "model")
    assert (tmp_path / "model" / "code" / "mine.py").read_text() == (tmp_path / "mine.py").read_text()


def test_a_validation_file_needs_a_training_file(given: Given) -> None:
    given.data = {"val_files": str(given.train)}
    given.model = Path("builtin")
    assert "data.val_files is set and data.train_files is not" in given.refusal()


def test_reading_says_how_far_it_is(given: Given) -> None:
    given.lines(ROWS * 120)
    said: list[tuple[str, int]] = []
    config = make_config({"model": {"path": str(given.model)}, "data": given.data}, "test")
    plan_data(config, lambda setting, prompts: said.append((setting, prompts)))
    assert said == [("data.train_files", 512), ("data.train_files", 1024), ("data.train_files", 1200)]
