"""An event's fields in one line, for people."""

from __future__ import annotations

from bus.events import Event

MOST_LETTERS = 400
"""Of a text of several lines, such as a policy's source; longer ones are only measured."""


def fields_text(event: Event) -> str:
    """`name=value` of each field, in order."""
    return " ".join(f"{name}={_shown(value)}" for name, value in event)


def _shown(value: object) -> str:
    if isinstance(value, str) and "\n" in value and len(value) > MOST_LETTERS:
        return f"({value.count(chr(10)) + 1} lines, {len(value)} letters)"
    return repr(value)
