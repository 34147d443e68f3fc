"""What a run's plan must know of its data: how much there is, how long it is, what its bits depend on; all of it checked once.

DataConfig, model folder ──plan_data──▶ DataPlan ──▶ services.plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bus.errors import ConfigError
from bus.events import Value
from services.config import BUILTIN, SCRIPTED, DataConfig, RunConfig
from services.data.files import digest_of
from services.data.model_folder import ModelFolder, read_model_folder, tokenizer_digest
from services.data.prompt_set import Limits, Progress, PromptSet, read_prompt_set
from services.data.prompt_text import PromptText
from services.named_rewards import reference_check
from services.reward_functions import RewardSpec, load_reward, reward_digest
from services.rewards import RewardRunner
from services.tasks import get_task

TASK_VALIDATION = 64
"""Prompts of a built-in task's validation set, unless it is said how many."""
MAX_PROMPT_LENGTH = 512
MAX_RESPONSE_LENGTH = 512
"""Tokens, for prompts from files, unless set otherwise; as in verl."""
TRAIN_DIGEST, VALIDATION_DIGEST, TOKENIZER_DIGEST, REWARD_DIGEST = "train_digest", "validation_digest", "tokenizer_digest", "reward_digest"


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Facts about the data of a run."""

    source: str
    """What it is called in messages."""
    max_prompt_length: int
    max_response_length: int
    """Tokens, if nothing else is set."""
    longest_prompt: int
    """Tokens that a prompt may have whatever is set; 0: none is longer than what is set."""
    room: int | None
    """Tokens of the longest sequence that the model can take; None: it does not say."""
    stop_token_ids: tuple[int, ...]
    num_prompts: int | None
    """Prompts of one data epoch; None: without an end."""
    num_validation: int
    environment: dict[str, Value] = field(default_factory=dict)
    """Digests and numbers for the plan."""


def plan_data(config: RunConfig, progress: Progress | None = None) -> DataPlan:
    """Reads and checks all there is. Raises ConfigError that says what is wrong, where, and what to do."""
    data, path = config.data, config.model.path
    if data.val_files and not data.train_files:
        raise ConfigError("data.val_files is set and data.train_files is not: a built-in task has a validation set of its own")
    if data.train_files and path in (BUILTIN, SCRIPTED):
        raise ConfigError(
            f"data.train_files is set and model.path is {path}: prompts from files are read by a model's tokenizer, "
            "so name a Hugging Face model folder"
        )
    model = None if path in (BUILTIN, SCRIPTED) else read_model_folder(Path(path))
    digest = check_reward(config)
    if data.train_files:
        assert model is not None
        plan = _of_files(config, model, progress)
    else:
        plan = _of_task(config, model)
    return plan if not digest else replace(plan, environment={**plan.environment, REWARD_DIGEST: digest})


def reward_spec(config: RunConfig, digest: str = "") -> RewardSpec:
    """What a reward worker needs."""
    files = bool(config.data.train_files)
    model = str(Path(config.model.path).absolute()) if files else ""
    return RewardSpec(config.data.reward, "" if files else config.data.task, model, digest)


def read_sets(
    config: RunConfig, text: PromptText, limits: Limits | None, progress: Progress | None = None
) -> tuple[PromptSet, PromptSet | None]:
    """Training and validation set. Raises ConfigError."""
    data = config.data
    train = read_prompt_set("data.train_files", data.train_files, data, text, limits, progress)
    return train, read_prompt_set("data.val_files", data.val_files, data, text, limits, progress) if data.val_files else None


def data_digests(config: RunConfig) -> dict[str, Value]:
    """What tells whether files have changed. Raises ConfigError for one that cannot be read."""
    data = config.data
    return {
        TRAIN_DIGEST: _digest("data.train_files", data.train_files),
        **({VALIDATION_DIGEST: _digest("data.val_files", data.val_files)} if data.val_files else {}),
        TOKENIZER_DIGEST: tokenizer_digest(Path(config.model.path)),
    }


def _digest(setting: str, files: Sequence[str]) -> str:
    try:
        return digest_of(files)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error


def with_absolute_paths(data: DataConfig) -> DataConfig:
    """As the plan has it: services may run in other folders than the command."""
    file, _, function = data.reward.rpartition(":")
    return data.model_copy(
        update={
            "train_files": tuple(str(Path(name).absolute()) for name in data.train_files),
            "val_files": tuple(str(Path(name).absolute()) for name in data.val_files),
            "reward": f"{Path(file).absolute()}:{function}" if file else data.reward,
        }
    )


def limits_of(config: RunConfig) -> Limits:
    """What every prompt must keep to."""
    limit = config.rollout.max_prompt_length or MAX_PROMPT_LENGTH
    return Limits(limit, config.data.filter_overlong_prompts, reference_check(config.data.reward))


def check_reward(config: RunConfig) -> str:
    """Loads the reward as the workers will, the user's code in a process of its own. Returns the digest of its file. Raises ConfigError."""
    if not config.data.reward:
        raise ConfigError("data.reward is not set: prompts from files need one: exact, number, math_verify, or path/file.py:function")
    spec = reward_spec(config)
    if spec.file is None:
        load_reward(spec)
        return ""
    digest = reward_digest(spec.file)
    with RewardRunner(spec):
        return digest


def _of_task(config: RunConfig, model: ModelFolder | None) -> DataPlan:
    task = get_task(config.data.task)
    if model is not None and model.vocab_size is not None and model.vocab_size < task.vocab_size:
        raise ConfigError(
            f"the model in {model.path} has embeddings for {model.vocab_size} tokens, task {task.name} has {task.vocab_size}: "
            "take another model, or model.path: builtin"
        )
    return DataPlan(
        source=f"task {task.name}",
        max_prompt_length=task.max_prompt_length,
        max_response_length=task.max_response_length,
        longest_prompt=task.max_prompt_length,
        room=task.max_prompt_length + task.max_response_length if config.model.path == BUILTIN else model.max_positions if model else None,
        stop_token_ids=(task.special.eos,),
        num_prompts=config.async_training.num_prompts,
        num_validation=TASK_VALIDATION if config.data.val_prompts is None else config.data.val_prompts,
    )


def _of_files(config: RunConfig, model: ModelFolder, progress: Progress | None) -> DataPlan:
    data = config.data
    text = PromptText(model.path, data)
    text.check_fit(model)
    stop_token_ids = config.rollout.stop_token_ids or text.stop_token_ids(model)
    digests = data_digests(config)  # before the files are read: what changes later is noticed
    train, validation = read_sets(config, text, limits_of(config), progress)
    return DataPlan(
        source="data.train_files",
        max_prompt_length=MAX_PROMPT_LENGTH,
        max_response_length=MAX_RESPONSE_LENGTH,
        longest_prompt=0,
        room=model.max_positions,
        stop_token_ids=stop_token_ids,
        num_prompts=_at_most(len(train), "data.train_files", "async_training.num_prompts", config.async_training.num_prompts),
        num_validation=0 if validation is None else _at_most(len(validation), "data.val_files", "data.val_prompts", data.val_prompts),
        environment={**digests, **_counts("train", train), **({} if validation is None else _counts("validation", validation))},
    )


def _counts(name: str, found: PromptSet) -> dict[str, Value]:
    return {f"{name}_prompts": len(found), f"{name}_prompts_left_out": found.left_out}


def _at_most(found: int, files: str, setting: str, wanted: int | None) -> int:
    if wanted is not None and wanted > found:
        raise ConfigError(f"{setting} is {wanted}, and {files} has {found} prompts: set it to {found} or less, or leave it unset")
    return found if wanted is None else wanted
