"""From rows to examples: a prompt, which is text or a conversation, and the reference answer as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.data.complaints import Complaints
from services.data.files import rows
from services.data.row import Row, lookup

Message = Mapping[str, str]
"""With `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt of a file, before its chat template and tokenizer, and the reference answer to it."""

    prompt: str | tuple[Message, ...]
    reference: str


class _Problem(Exception):
    """Why a row is no example."""


def examples(complaints: Complaints, files: Sequence[str], prompt_key: str, answer_key: str) -> Iterator[tuple[str, Example]]:
    """(file and line, example) of all rows; rows that are none are complained about. Raises ConfigError for a file that is none."""
    for file in files:
        found = 0
        for row in rows(file, (prompt_key, answer_key)):
            found += 1
            try:
                yield row.where, _example(row, prompt_key, answer_key)
            except _Problem as problem:
                complaints.add(row.where, str(problem))
        if found == 0:
            complaints.add(file, "there is not one line in it")


def _example(row: Row, prompt_key: str, answer_key: str) -> Example:
    if row.problem:
        raise _Problem(row.problem)
    prompt = _value(row, "data.prompt_key", prompt_key)
    return Example(_prompt(prompt_key, prompt), _reference(_value(row, "data.answer_key", answer_key)))


def _value(row: Row, setting: str, key: str) -> object:
    value = lookup(row.values, key)
    if value is not None:
        return value
    if key.split(".")[0] in row.names or key in row.names:
        raise _Problem(f"{key} is missing or null")
    raise _Problem(f"there is no column {key}, only {', '.join(row.names) or 'none at all'}: name another one with {setting}")


def _prompt(key: str, value: object) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise _Problem(f"{key} is empty")
        return _whole(key, value)
    if not isinstance(value, list) or not value:
        raise _Problem(f"{key} is {value!r:.80}, it must be text or a list of messages")
    messages = tuple(_message(key, place, message) for place, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise _Problem(f"{key} ends with a message of the assistant: it must end where the answer begins")
    return messages


def _message(key: str, place: int, value: object) -> Message:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, Mapping) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise _Problem(f"{key}[{place}] is {value!r:.80}, it must be a message with role and content, both text")
    return {"role": role, "content": _whole(f"{key}[{place}]", content)}


def _whole(key: str, text: str) -> str:
    """The text, if it can be written as UTF-8 again."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Problem(f"{key} has half a character at place {error.start + 1} (a lone surrogate, {text[error.start]!r})") from error
    return text


def _reference(value: object) -> str:
    """Text as it is; numbers, lists and the like as JSON, from which a reward can read them again."""
    return _whole("the reference", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
