"""Policies by name. A policy from a file is a `Factory`, too: whoever loads the file makes one with `factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from bus.errors import ConfigError
from bus.events import Value
from policies.default import Default, DefaultParams
from policies.fixed_ratio import FixedRatio, FixedRatioParams
from policies.predictive import Predictive, PredictiveParams
from policies.protocol import Policy
from policies.separate_async import SeparateAsync, SeparateAsyncParams
from policies.static_fully_async import StaticFullyAsync, StaticFullyAsyncParams

Factory = Callable[[str, Mapping[str, Value]], Policy]
"""(the name it was chosen by, its settings) -> the policy. Raises ConfigError."""
P = TypeVar("P", bound=BaseModel)


def factory(model: type[P], build: Callable[[P], Policy]) -> Factory:
    """A factory that validates the settings by `model`, then builds."""

    def make(name: str, params: Mapping[str, Value]) -> Policy:
        for key in params:
            if key not in model.model_fields:
                known = tuple(model.model_fields)
                raise ConfigError(f"policy {name} has no setting {key!r}: did you mean {nearest(key, known)!r}? It has {', '.join(known)}")
        try:
            return build(model.model_validate(dict(params)))
        except ValidationError as error:
            raise ConfigError(f"policy {name}: {_first(error)}") from error

    return make


POLICIES: Mapping[str, Factory] = {
    "default": factory(DefaultParams, Default),
    "fixed_ratio": factory(FixedRatioParams, FixedRatio),
    "predictive": factory(PredictiveParams, Predictive),
    "separate_async": factory(SeparateAsyncParams, SeparateAsync),
    "static_fully_async": factory(StaticFullyAsyncParams, StaticFullyAsync),
}


def create(name: str, params: Mapping[str, Value]) -> Policy:
    """A new policy. Raises ConfigError for an unknown name or setting, or a setting outside its limits."""
    make = POLICIES.get(name)
    if make is None:
        known = tuple(POLICIES)
        raise ConfigError(f"there is no policy {name!r}: did you mean {nearest(name, known)!r}? There are {', '.join(known)}")
    return make(name, params)


def nearest(word: str, known: tuple[str, ...]) -> str:
    """The known word that contains it, else the one with the fewest letters to change; the earlier one of equals."""
    return min(known, key=lambda other: (word not in other, _letters_to_change(word, other)))


def _letters_to_change(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row[-1]


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where} is {problem['input']!r}: {problem['msg']}"
