"""Everything that a core holds, as JSON: the same from the same log, for tools.

Instances become objects with the names of their attributes, without leading underscores; keys that are no text are written as text, the
parts of a pair with a slash between them. What was met before is a reference to its first place; the plan one to the plan.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from bus.events import Event, RunPlanned
from bus.snapshot import attributes

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
SEE = "see"


def dump(value: object, plan: RunPlanned | None = None) -> Json:
    """The state of a core. `plan`: what is shown elsewhere and only referred to."""
    return _Dumper(plan).json(value, "")


class _Dumper:
    """Remembers what it has seen, and where."""

    def __init__(self, plan: RunPlanned | None) -> None:
        self._plan = plan
        self._places: dict[int, str] = {}

    def json(self, value: object, place: str) -> Json:
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, RunPlanned) and value == self._plan:
            return {SEE: "plan"}
        if isinstance(value, Event):
            return {"kind": value.kind, **self._members(attributes(value), place)}
        if id(value) in self._places:
            return {SEE: self._places[id(value)]}
        if isinstance(value, dict):
            self._remember(value, place)
            return {_key(key): self.json(part, f"{place}.{_key(key)}") for key, part in value.items()}
        if isinstance(value, list | tuple | deque):
            return [self.json(part, f"{place}[{index}]") for index, part in enumerate(value)]
        self._remember(value, place)
        return self._members(attributes(value), place)

    def _members(self, members: dict[str, object], place: str) -> dict[str, Json]:
        return {
            name.lstrip("_"): self.json(part, f"{place}.{name.lstrip('_')}" if place else name.lstrip("_"))
            for name, part in members.items()
        }

    def _remember(self, value: object, place: str) -> None:
        if place and (not isinstance(value, dict) or value):
            self._places[id(value)] = place


def _key(key: object) -> str:
    return "/".join(str(part) for part in key) if isinstance(key, tuple) else str(key)
