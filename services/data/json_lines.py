"""Rows of a JSONL file: one object a line, UTF-8; empty lines are skipped, but counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from services.data.row import Row

_WORDS = {"list": "a list", "str": "text", "NoneType": "null", "bool": "true or false", "int": "a number", "float": "a number"}


def json_rows(path: Path) -> Iterator[Row]:
    """The rows, those that are no objects with their problem. Raises OSError."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.isspace():
                yield _row(f"{path}, line {number}", line.rstrip(b"\r\n"))


def _row(where: str, line: bytes) -> Row:
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Row(where, problem=f"byte {error.start + 1} of the line is no UTF-8")
    except json.JSONDecodeError as error:
        return Row(where, problem=f"no JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without an end
        return Row(where, problem=f"no JSON that can be read: {error}")
    if not isinstance(values, dict):
        return Row(where, problem=f"holds {_WORDS[type(values).__name__]}, it must be an object with columns")
    return Row(where, values, tuple(values))
