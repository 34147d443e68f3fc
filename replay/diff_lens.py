"""What counts when two recordings are compared: what was done and said, not where and when.

What depends on the machine and the moment is left out, unless all is asked for: times, processes and hosts, places of files, the run's id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bus.entry import Entry
from bus.events import Event, RunPlanned, ServiceStarted
from bus.recording import Row

Fields = dict[str, object]
Differing = tuple[tuple[str, object, object], ...]
"""(field, in A, in B)."""

MACHINE = frozenset({"seconds", "pid", "host", "uri", "code", "used_bytes", "budget_bytes"})
"""Fields that say where and when something was done."""
MACHINE_KINDS = frozenset({"Measured"})
"""Kinds that say nothing else; only that they are there counts."""
KEYS = ("sample", "request", "attempt", "step", "version", "prompt", "swing", "replica", "service", "key", "answers", "amends", "name")
"""Fields that say which thing an event is about, its natural key."""
OWN_CONFIG = ("name", "folder", "devices")
"""Settings that are a run's or a machine's own."""
MACHINE_OF_PLAN = ("environment", "devices")
"""Fields of a plan that say what machine it was made for."""


@dataclass(frozen=True, slots=True)
class Lens:
    """`strict`: everything counts but chains, which follow from the rest."""

    strict: bool = False

    def same_row(self, left: Row, right: Row) -> bool:
        """Rows at the same position are the same as they are stored; False: they may be so when they are read."""
        return (
            left.body == right.body
            and (left.kind, left.version, left.source, left.epoch, left.derived, left.cause)
            == (right.kind, right.version, right.source, right.epoch, right.derived, right.cause)
            and not (self.strict and left.at != right.at)
        )

    def same(self, one: Entry, other: Entry) -> bool:
        """Entries at the same position say the same."""
        if self.strict and one.at != other.at:
            return False
        return one[:5] == other[:5] and self.says_same(one.event, other.event)

    def fields(self, event: Event) -> Fields:
        """The fields of an event that count."""
        fields: Fields = event.model_dump()
        if self.strict:
            return fields
        if event.kind in MACHINE_KINDS:
            return {name: fields[name] for name in KEYS if name in fields}
        if isinstance(event, RunPlanned):
            return _plan_fields(fields)
        return {name: value for name, value in fields.items() if name not in MACHINE}

    def says_same(self, one: Event, other: Event) -> bool:
        """Two events say the same."""
        return one.kind == other.kind and self.fields(one) == self.fields(other)

    def differing(self, one: Event, other: Event) -> Differing:
        """Fields in which two events of one kind differ, parts of them by their path."""
        return differing_fields(self.fields(one), self.fields(other))


def of_machine(plan: RunPlanned) -> Fields:
    """What a plan says of the machine it was made for: noted, and not what the runs are to do."""
    return {name: dict(getattr(plan, name)) for name in MACHINE_OF_PLAN}


def differing_fields(one: Fields, other: Fields) -> Differing:
    """Fields that are not the same, parts of them by their path."""
    return tuple(_differing(one, other))


def _plan_fields(fields: Fields) -> Fields:
    """A plan without what is the run's or the machine's own; its configuration as it reads, not as it is written."""
    try:
        config: object = json.loads(str(fields["config"]))
    except ValueError:
        config = fields["config"]
    if isinstance(config, dict):
        config = {name: _anywhere(value) for name, value in config.items() if name not in OWN_CONFIG}
    return {name: value for name, value in fields.items() if name != "run" and name not in MACHINE_OF_PLAN} | {"config": config}


def _anywhere(value: object) -> object:
    """A setting with files by their names, wherever they lie."""
    if isinstance(value, dict):
        return {name: _anywhere(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_anywhere(part) for part in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _differing(one: Fields, other: Fields, path: str = "") -> Iterator[tuple[str, object, object]]:
    for name in dict.fromkeys((*one, *other)):
        left, right = one.get(name), other.get(name)
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _differing(left, right, f"{path}{name}.")
        else:
            yield f"{path}{name}", left, right


def is_about(entry: Entry) -> tuple[object, ...]:
    """Which thing an entry is about: entries of two recordings with the same answer are counterparts."""
    event = entry.event
    keys = tuple((name, event.__dict__[name]) for name in KEYS if name in event.__dict__)
    return (event.kind, entry.source, entry.derived, entry.epoch if isinstance(event, ServiceStarted) else 0, keys)
