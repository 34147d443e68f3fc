"""The prompts of one set of files in memory; they become tokens when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from bus.errors import ConfigError
from services.config import DataConfig
from services.data.complaints import Complaints
from services.data.examples import Example, examples
from services.data.prompt_text import PromptText
from services.tasks.protocol import Prompt

CHUNK = 512
"""Prompts that are made into tokens together."""

Progress = Callable[[str, int], None]
"""Called with the setting whose files are read, and the prompts read so far."""
ReferenceCheck = Callable[[str], object]
"""Raises ValueError for a reference answer that the reward cannot use."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What every example must keep to."""

    max_prompt_length: int
    filter_overlong: bool
    check_reference: ReferenceCheck | None


class PromptSet:
    """Examples and how they become tokens."""

    def __init__(self, found: Sequence[Example], left_out: int, text: PromptText) -> None:
        self._examples = found
        self._text = text
        self.left_out = left_out
        """Prompts that were too long."""

    def __len__(self) -> int:
        return len(self._examples)

    def prompt(self, place: int) -> Prompt:
        """Prompt number `place` of the set, from 0."""
        example = self._examples[place]
        return Prompt(self._text.tokens([self._text.rendered(example)])[0], example.reference)


def read_prompt_set(
    setting: str, files: Sequence[str], data: DataConfig, text: PromptText, limits: Limits | None, progress: Progress | None = None
) -> PromptSet:
    """Reads files; with `limits` every prompt is made into tokens once, and checked. Raises ConfigError that names lines and reasons."""
    complaints = Complaints(setting)
    found: list[Example] = []
    read = 0
    try:
        for chunk in _batched(examples(complaints, files, data.prompt_key, data.answer_key)):
            found += [example for _, example in chunk] if limits is None else _checked(chunk, text, limits, complaints)
            read += len(chunk)
            if progress is not None:
                progress(setting, read)
    except ConfigError as error:
        complaints.raise_if_any()
        raise ConfigError(f"{setting}: {error}") from error
    complaints.raise_if_any()
    if not found:
        assert limits is not None
        raise ConfigError(f"{setting}: all {read} prompts have over rollout.max_prompt_length = {limits.max_prompt_length} tokens")
    return PromptSet(found, read - len(found), text)


def _batched(located: Iterator[tuple[str, Example]]) -> Iterator[list[tuple[str, Example]]]:
    while chunk := list(islice(located, CHUNK)):
        yield chunk


def _checked(chunk: Sequence[tuple[str, Example]], text: PromptText, limits: Limits, complaints: Complaints) -> list[Example]:
    """Those of the chunk that are used."""
    renderings: list[tuple[str, bool]] = []
    sound: list[tuple[str, Example]] = []
    for where, example in chunk:
        try:
            rendered = text.rendered(example)
            if limits.check_reference is not None:
                limits.check_reference(example.reference)
        except ValueError as error:
            complaints.add(where, str(error))
        else:
            renderings.append(rendered)
            sound.append((where, example))
    fitting: list[Example] = []
    for (where, example), tokens in zip(sound, text.tokens(renderings), strict=True):
        if not tokens:
            complaints.add(where, "the prompt has no tokens: the tokenizer knows none of its characters")
        elif len(tokens) <= limits.max_prompt_length:
            fitting.append(example)
        elif not limits.filter_overlong:
            complaints.add(
                where,
                f"the prompt has {len(tokens)} tokens, rollout.max_prompt_length is {limits.max_prompt_length}",
                "raise rollout.max_prompt_length, or leave such prompts out with data.filter_overlong_prompts: true",
            )
    return fitting
