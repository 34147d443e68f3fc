"""Settings of a user's policy: the arguments of its `__init__`, each with a type and a default, set as in `--set cycles=3 --set share=0.4`.

def __init__(self, cycles: int = 2, share: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None: …
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from bus.errors import ConfigError
from bus.events import Value
from policies.registry import nearest

PLAIN = (str, int, float, bool, type(None))


def settings_of(name: str, kind: type, params: Mapping[str, Value]) -> tuple[dict[str, object], dict[str, Value]]:
    """What `kind` is called with, and all of its settings as they are recorded. Raises ConfigError."""
    adapters, defaults = _arguments(name, kind)
    for key in params:
        if key not in adapters:
            guess = f": did you mean {nearest(key, tuple(adapters))!r}? It has {', '.join(adapters)}" if adapters else ", nor any other"
            raise ConfigError(f"policy {name} has no setting {key!r}{guess}")
    given = {key: _validated(name, key, adapter, params.get(key, defaults[key])) for key, adapter in adapters.items()}
    return given, {key: _recorded(name, key, adapters[key], value) for key, value in given.items()}


def _arguments(name: str, kind: type) -> tuple[dict[str, TypeAdapter[object]], dict[str, object]]:
    init = kind.__init__  # type: ignore[misc]  # whose arguments are the question
    if init is object.__init__:
        return {}, {}
    try:
        _, *arguments = inspect.signature(init).parameters.values()
        hints = get_type_hints(init, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"policy {name}: the arguments of {kind.__name__}.__init__ cannot be read: {error}") from error
    adapters: dict[str, TypeAdapter[object]] = {}
    for argument in arguments:
        where = f"policy {name}: the argument {argument.name} of {kind.__name__}.__init__"
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise ConfigError(f"{where} cannot be set by name: give it a name, a type and a default")
        if argument.default is argument.empty or argument.name not in hints:
            raise ConfigError(f"{where} needs a type and a default, as in `{argument.name}: float = 0.5`: it is a setting")
        try:
            adapters[argument.name] = TypeAdapter(hints[argument.name])
        except PydanticUserError as error:
            raise ConfigError(f"{where} is of a type that cannot be read from a configuration: {error.message}") from error
    return adapters, {argument.name: argument.default for argument in arguments}


def _validated(name: str, key: str, adapter: TypeAdapter[object], value: object) -> object:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"policy {name}: {key} is {value!r}: {error.errors(include_url=False)[0]['msg']}") from error


def _recorded(name: str, key: str, adapter: TypeAdapter[object], value: object) -> Value:
    found: object = adapter.dump_python(value, mode="json")
    if isinstance(found, PLAIN):
        return found
    raise ConfigError(f"policy {name}: {key} is {found!r}: a setting is a text, a number, true, false or null")
