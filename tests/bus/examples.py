"""An event of any kind with no field left out."""

from __future__ import annotations

import types
import typing
from typing import TypeVar

from annotated_types import Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = TypeVar("Model", bound=BaseModel)

SIMPLE: dict[object, object] = {str: "täxt\x00", int: 2**53 + 1, float: 0.1 + 0.2, bool: True, bytes: b"\xff", type(None): None}


def example_of(model: type[Model]) -> Model:
    return model.model_validate({name: _within(field, example(field.annotation)) for name, field in model.model_fields.items()})


def _within(field: FieldInfo, value: object) -> object:
    """The value, or the field's limit if it is over it."""
    limits = [limit.le for limit in field.metadata if isinstance(limit, Le)]
    return min([value, *limits]) if limits else value  # type: ignore[type-var]


def example(annotation: object) -> object:
    """Some value of a field's type, with nothing left out."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return example_of(annotation)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if origin is typing.Literal:
        return arguments[-1]
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0])
    if origin is dict:
        return {f"{example(arguments[0])} µ": example(arguments[1])}
    if origin is tuple:
        return tuple(example(argument) for argument in arguments if argument is not Ellipsis) * (2 if Ellipsis in arguments else 1)
    raise AssertionError(f"no example for a field of type {annotation}: add one")
