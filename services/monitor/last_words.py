"""What a process, or a refusal, said last that means something to a person; and how it is told that a run has ended."""

from __future__ import annotations

import re

from bus.events import RunEnded

_MEANINGLESS = re.compile(r"\s*(For further information visit .*|[\^~ ]*)")
"""Lines that explain nothing: pydantic's link, and marks below a line of a traceback."""
_LOG_LINE = re.compile(r":? \d{4}-\d\d-\d\dT\S+ (DEBUG|INFO) .*$")
"""What it had told its log before, in order."""


def last_words(detail: str) -> str:
    """The last meaningful line; empty if there is none."""
    lines = [line.strip() for line in detail.splitlines() if not _MEANINGLESS.fullmatch(line)]
    return _LOG_LINE.sub("", lines[-1]) if lines else ""


def ended_words(ended: RunEnded) -> str:
    """As every command says it of a run."""
    return f"has ended ({ended.reason}{f': {ended.detail}' if ended.detail else ''})"
