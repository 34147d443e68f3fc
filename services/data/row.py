"""One row of a data file, of whatever kind the file is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """`where` names file and line for people; a row that cannot be read has a `problem` and no values."""

    where: str
    values: Mapping[str, object] = field(default_factory=dict)
    names: Sequence[str] = ()
    """All columns of the row, also those that were not asked for."""
    problem: str = ""


def lookup(values: Mapping[str, object], key: str) -> object:
    """The value under `key`: a column of this name, else a dot leads into a column. None when there is none."""
    if key in values:
        return values[key]
    place: object = values
    for name in key.split("."):
        if not isinstance(place, Mapping):
            return None
        place = place.get(name)
    return place
