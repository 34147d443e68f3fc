"""A policy of the user's: `path/file.py:ClassName`, and the text of its file.

The file is read once, by whoever plans a run or asks for a swap. From then on its text travels in the log, and only that counts: a
replay, and a service on another machine, need nothing else, and a file that was changed since changes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from bus.errors import ConfigError
from bus.events import MAX_POLICY_SOURCE_BYTES

FORM = "path/file.py:ClassName"
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
ROOM_FOR_NUMBER = 4
"""Characters that a label of our making leaves for what makes it the only one, such as `-2`."""


def is_in_file(name: str) -> bool:
    """It names a class in a file, not a built-in policy."""
    return ":" in name or "/" in name or name.endswith(".py")


def file_and_class(name: str) -> tuple[str, str]:
    """The path, as the user wrote it, and the name of the class. Raises ConfigError."""
    file, colon, class_name = name.rpartition(":")
    if not colon:
        raise ConfigError(f"policy {name}: say which class of the file it is, {name}:ClassName")
    if not file.endswith(".py") or not class_name.isidentifier():
        raise ConfigError(f"policy {name}: it must be the name of a built-in policy, or {FORM}")
    return file, class_name


def short_name(name: str) -> str:
    """What a policy is called where there is little room: its own name, or that of its class."""
    return file_and_class(name)[1] if is_in_file(name) else name


def check_label(label: str) -> None:
    """Raises ConfigError for what cannot be the label of a shadow."""
    if not LABEL.fullmatch(label):
        raise ConfigError(
            f"{label[:60]!r} cannot be a label: it must be 1 to 40 letters (a to z), digits, `_`, `.` or `-`, and begin with a letter or a "
            "digit"
        )


def label_like(wanted: str) -> str:
    """What is left of it that can be a label, and have a number behind it."""
    fitting = re.sub(r"[^A-Za-z0-9_.-]", "", wanted).lstrip("_.-")
    return fitting[: 40 - ROOM_FOR_NUMBER] or "shadow"


def read_source(name: str) -> str:
    """The text of the file that a policy is in; empty for a built-in one. Raises ConfigError."""
    if not is_in_file(name):
        return ""
    path = Path(file_and_class(name)[0])
    try:
        content = path.read_bytes()
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"policy {name}: {path.absolute()} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"policy {name}: {path} is no text in UTF-8: {error}") from error
    if len(content) > MAX_POLICY_SOURCE_BYTES:
        raise ConfigError(
            f"policy {name}: {path} has {len(content)} bytes, a policy's file may have {MAX_POLICY_SOURCE_BYTES}: it is a part of the log"
        )
    return text
