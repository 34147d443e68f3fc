"""The function behind `data.reward`, and how tokens become the text that it reads. Imports no torch.

built-in task       reward(prompt tokens, answer tokens, reference tokens)
named, or a file's  reward(prompt text, answer text, reference text), a file's sync or async
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, cast

from bus.errors import ConfigError
from services.named_rewards import named_reward
from services.tasks import get_task, task_names

Reference = str | Sequence[int]
"""What the right answer is, as the task or the data set states it."""
Scored = float | Awaitable[float]
TokenReward = Callable[[tuple[int, ...], tuple[int, ...], Reference], Scored]
"""(prompt tokens, answer tokens, reference) -> reward."""

MAX_DETAIL = 8_000
"""Characters of a traceback that are sent on: its end, where the error is."""
DIGEST_CHARACTERS = 16
_OURS = (__file__, str(Path(__file__).with_name("reward_worker.py")))
"""Whose frames nobody needs to see."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """Which reward, and by what its text is made of tokens."""

    reward: str
    """Name of a built-in task, a named reward, or `path/file.py:function`."""
    task: str = ""
    """The built-in task that prompts are from; empty: they are from files."""
    model: str = ""
    """The folder whose tokenizer makes text; needed for prompts from files."""
    digest: str = ""
    """Of the reward's file as the run was planned with it; empty: any will do."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RewardSpec:
        return cls(**json.loads(text))

    @property
    def file(self) -> Path | None:
        """The file that the reward is in, if it is in one."""
        return Path(self.reward.rpartition(":")[0]) if ":" in self.reward else None


def load_reward(spec: RewardSpec) -> TokenReward:
    """The reward as a function of tokens. Raises ConfigError."""
    if spec.file is None and spec.reward in task_names():
        if spec.task != spec.reward:
            raise ConfigError(
                f"data.reward is {spec.reward}, which scores the tokens of its own task; the prompts are from "
                f"{f'the task {spec.task}' if spec.task else 'files'}: use exact, number, math_verify, or path/file.py:function"
            )
        return cast(TokenReward, get_task(spec.reward).reward)
    function = named_reward(spec.reward, task_names()) if spec.file is None else _of_file(spec, spec.file)
    return _reading_text(function, make_texts(spec))


def reward_digest(file: Path) -> str:
    """Digest of a reward's file. Raises ConfigError when it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGEST_CHARACTERS]
    except OSError as error:
        raise ConfigError(f"data.reward: {file.absolute()} cannot be read: {error.strerror or error}") from error


class Texts(Protocol):
    """How tokens become text."""

    def prompt(self, tokens: Sequence[int]) -> str:
        """The prompt as the model saw it."""

    def answer(self, tokens: Sequence[int]) -> str:
        """The answer without special tokens."""


def make_texts(spec: RewardSpec) -> Texts:
    """The texts of the task, or those of the model's tokenizer. Raises ConfigError."""
    if spec.task:
        return _TaskTexts(spec.task)
    from services.data.tokenizer import TextTokenizer

    return _TokenizerTexts(TextTokenizer(Path(spec.model)))


class _TaskTexts:
    def __init__(self, task: str) -> None:
        self._task = get_task(task)

    def prompt(self, tokens: Sequence[int]) -> str:
        return self._task.text(tuple(tokens))

    def answer(self, tokens: Sequence[int]) -> str:
        return self._task.text(tuple(tokens))


class _TokenizerTexts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prompt(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def answer(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


class Tokenizer(Protocol):
    """The part of `services.data.tokenizer.TextTokenizer` that makes text."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some ids."""


def _reading_text(function: Callable[[str, str, str], Scored], texts: Texts) -> TokenReward:
    def score(prompt: tuple[int, ...], answer: tuple[int, ...], reference: Reference) -> Scored:
        right = reference if isinstance(reference, str) else texts.answer(reference)
        return function(texts.prompt(prompt), texts.answer(answer), right)

    return score


def _of_file(spec: RewardSpec, file: Path) -> Callable[[str, str, str], Scored]:
    path, name = file.absolute(), spec.reward.rpartition(":")[2]
    loading = importlib.util.spec_from_file_location(f"reward_{path.stem}", path)
    if not path.is_file() or loading is None or loading.loader is None:
        raise ConfigError(f"data.reward is {spec.reward}: {path} is no Python file: write path/file.py:function, or the name of a reward")
    if spec.digest and reward_digest(path) != spec.digest:
        raise ConfigError(
            f"data.reward is {spec.reward}: {path} is not what the run was planned with (digest {spec.digest}, now {reward_digest(path)}): "
            "bring it back (a copy is in the run's folder, code/), or start a new run"
        )
    module = importlib.util.module_from_spec(loading)
    sys.modules[loading.name] = module
    sys.path.append(str(path.parent))  # what lies beside it can be imported, but hides nothing
    try:
        loading.loader.exec_module(module)
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(f"data.reward is {spec.reward}: importing {path} failed:\n{told(error)}") from error
    function: object = vars(module).get(name)
    if not callable(function):
        functions = [known for known, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
        raise ConfigError(f"data.reward is {spec.reward}: {path} has no function {name}, only {', '.join(functions) or 'none at all'}")
    _check_parameters(spec, function)
    return cast("Callable[[str, str, str], Scored]", function)


def _check_parameters(spec: RewardSpec, function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: the first call will tell
    try:
        signature.bind("prompt", "answer", "reference")
    except TypeError as error:
        raise ConfigError(
            f"data.reward is {spec.reward}: it is called as reward(prompt, answer, reference), which its parameters "
            f"{signature} do not allow: {error}"
        ) from error


def told(error: BaseException) -> str:
    """The exception's traceback from the user's own code on, its end if it is long."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))[-MAX_DETAIL:]
