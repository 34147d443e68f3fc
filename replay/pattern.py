"""What an entry must be like: a kind, and what its fields must say.

    SwitchRequested target=train          SampleReady sample=17          evidence.gap=3.5 answers=4          replica:h0's: source=replica:h0

Fields of the event, with dots into what they hold; of the envelope: source, epoch, derived, cause, position. A list holds a value if one
of its items is it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import KINDS
from bus.events.base import Frozen
from policies.registry import nearest

ENVELOPE = ("source", "epoch", "derived", "cause", "position")


@dataclass(frozen=True, slots=True)
class Pattern:
    """`kind` empty: any. `wanted`: (path of a field, what it must say)."""

    kind: str
    wanted: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ConfigError, naming the nearest kind or field, for one that does not exist."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no pattern: {error}") from error
        if not words:
            raise ConfigError("an empty pattern is like every entry: give a kind, as in 'StepDone', or 'SwitchRequested target=train'")
        kind = "" if "=" in words[0] else check_kind(words.pop(0))
        return cls(kind, tuple(_wish(kind, word) for word in words))

    def __str__(self) -> str:
        return shlex.join((*self.kinds, *(f"{path}={text}" for path, text in self.wanted)))

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds to look at; none: all."""
        return (self.kind,) if self.kind else ()

    def matches(self, entry: Entry) -> bool:
        """This entry is like that."""
        if self.kind and entry.event.kind != self.kind:
            return False
        return all(says(_look_up(entry, path), text) for path, text in self.wanted)


def check_kind(kind: str) -> str:
    """Returns `kind`. Raises ConfigError for one that does not exist."""
    if kind not in KINDS:
        raise ConfigError(f"there is no kind {kind!r}: did you mean {nearest(kind, tuple(KINDS))!r}?")
    return kind


def says(value: object, text: str) -> bool:
    """The value is what the text says: `true`, `none`, a number, a word; for a list, one of its items is."""
    if isinstance(value, tuple | list):
        return any(says(item, text) for item in value)
    if value is None or isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return value == float(text)
        except ValueError:
            return False
    return isinstance(value, str) and value == text


def _wish(kind: str, word: str) -> tuple[str, str]:
    path, sign, text = word.partition("=")
    if not sign or not path:
        raise ConfigError(f"{word!r} is no part of a pattern: write FIELD=VALUE, as in target=train")
    head = path.partition(".")[0]
    if kind:
        known = (*KINDS[kind].model_fields, *ENVELOPE)
        if head not in known:
            raise ConfigError(f"{kind} has no field {head!r}: did you mean {nearest(head, known)!r}? It has {', '.join(known)}")
    elif head not in ENVELOPE and not any(head in model.model_fields for model in KINDS.values()):
        known = tuple(dict.fromkeys((*ENVELOPE, *(name for model in KINDS.values() for name in model.model_fields))))
        raise ConfigError(f"no kind has a field {head!r}: did you mean {nearest(head, known)!r}?")
    return path, text


def _look_up(entry: Entry, path: str) -> object:
    """What a path leads to; `missing` where there is nothing."""
    head, *rest = path.split(".")
    value: object
    if head in type(entry.event).model_fields:
        value = getattr(entry.event, head)
    elif head in ENVELOPE:
        value = getattr(entry, head)
    else:
        return _MISSING
    for name in rest:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, Frozen) and name in type(value).model_fields:
            value = getattr(value, name)
        else:
            return _MISSING
    return value


_MISSING = object()
