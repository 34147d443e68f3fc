"""A core's whole state as bytes, and back: what it would have after all entries up to a position, without folding them again.

    freeze(core) ─▶ msgpack: [[class, names of its attributes] …], value ─▶ thaw ─▶ a core that goes on as the frozen one would

An object that is referred to from several places (folds share books and requests) is one object again. Only plain data is known: classes
below bus, policies and services with their attributes, pydantic models, tuples, lists, dicts, deques and scalars. No code is in a
snapshot, and thawing calls none but the validation of models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TypeAlias, TypeVar, cast

import msgpack
from pydantic import BaseModel, ValidationError

from bus.errors import CodecError

PACKAGES = ("bus", "policies", "services")
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
Kind = tuple[type, tuple[str, ...]]
Like = TypeVar("Like")


class _Part(IntEnum):
    """What the first number of a node says."""

    AGAIN = 0
    """The object with this number."""
    TUPLE = 1
    LIST = 2
    DICT = 3
    DEQUE = 4
    OBJECT = 5


Node: TypeAlias = "bool | int | float | str | bytes | list[Node] | None"
"""A scalar as it is; else [what it is, its parts …]."""


def freeze(core: object) -> bytes:
    """The state of `core`. Raises CodecError, naming the attribute, for state that is no plain data."""
    freezer = _Freezer(_own_kinds(core))
    value = freezer.node(core)
    classes = [[_name_of(kind), list(names)] for kind, names in freezer.kinds]
    try:
        return bytes(msgpack.packb([classes, value]))
    except (ValueError, OverflowError) as error:
        raise CodecError(f"the state of a {type(core).__name__} cannot be written: {error}") from error


def thaw(data: bytes, like: Like) -> Like:
    """The frozen core. `like`: a fresh one, from which classes are taken that lie elsewhere, as that of a user's own policy.

    Raises CodecError for broken data, and for the state of something else.
    """
    others = {_name_of(kind): kind for kind in _own_kinds(like)}
    try:
        classes, value = msgpack.unpackb(data)
        kinds = [(_class(name, others), tuple(names)) for name, names in classes]
        core = _Thawer(kinds).value(value)
        if type(core) is not type(like):
            raise TypeError(f"it is of a {type(core).__name__}, a {type(like).__name__} is expected")
        return core
    except (ValueError, TypeError, LookupError, AttributeError, ImportError, msgpack.UnpackException, ValidationError) as error:
        raise CodecError(f"a snapshot of {len(data)} bytes cannot be read: {type(error).__name__}: {error}") from error


def thaw_into(core: object, data: bytes) -> None:
    """Gives a fresh `core`, to which others may refer already, the frozen state. Raises as `thaw` does, and then changes nothing."""
    for name, value in attributes(thaw(data, core)).items():
        object.__setattr__(core, name, value)


def attributes(value: object) -> dict[str, object]:
    """The attributes of an instance, in the order in which they were set, those in slots first; the fields of a model or a named tuple."""
    if isinstance(value, BaseModel):
        return dict(value.__dict__)
    kind: type = type(value)
    found = {name: getattr(value, name) for name in _slots(kind)}
    return found | getattr(value, "__dict__", {})


@cache
def _slots(kind: type) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    names = [base.__dict__.get("__slots__", ()) for base in reversed(kind.__mro__)]
    flat = [name for name in names for name in ((name,) if isinstance(name, str) else name)]
    return tuple(name for name in flat if name not in ("__dict__", "__weakref__"))


def _own_kinds(core: object) -> frozenset[type]:
    """Classes that are known because a core is of them, or one of its attributes is; others must lie below our packages."""
    return frozenset(map(type, (core, *attributes(core).values())))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str, others: Mapping[str, type]) -> type:
    if name in others:
        return others[name]
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in PACKAGES:
        raise LookupError(f"{name} lies neither below {', '.join(PACKAGES)} nor among the classes that were given")
    found: object = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise TypeError(f"{name} is no class")
    return found


class _Freezer:
    """Walks over an object; each list, dict, deque and instance has the number in which order it was met first."""

    def __init__(self, own_kinds: frozenset[type]) -> None:
        self.kinds: dict[Kind, int] = {}
        self._own_kinds = own_kinds
        self._numbers: dict[int, int] = {}
        """id of what the core holds -> its number. Everything met is held by the core meanwhile, so no id comes twice."""
        self._where: list[str] = []

    def node(self, value: object) -> Node:
        kind = type(value)
        if kind in _SCALARS:
            return cast(Node, value)
        if kind is tuple:
            return [_Part.TUPLE, *map(self.node, cast("tuple[object, ...]", value))]
        number = self._numbers.get(id(value))
        if number is not None:
            return [_Part.AGAIN, number]
        self._numbers[id(value)] = len(self._numbers)
        if kind is dict:
            return [_Part.DICT, *(self.node(part) for item in cast("dict[object, object]", value).items() for part in item)]
        if kind is list:
            return [_Part.LIST, *map(self.node, cast("list[object]", value))]
        if kind is deque:
            queue = cast("deque[object]", value)
            return [_Part.DEQUE, queue.maxlen, *map(self.node, queue)]
        return self._object(value, kind)

    def _object(self, value: object, kind: type) -> Node:
        known = kind in self._own_kinds or kind.__module__.partition(".")[0] in PACKAGES
        if not known or kind.__module__ == "builtins":
            raise CodecError(f"{'.'.join(self._where) or 'the core'} is a {kind.__name__}: a snapshot can hold plain data only")
        found = attributes(value)
        which: Kind = (kind, tuple(found))
        node: list[Node] = [_Part.OBJECT, self.kinds.setdefault(which, len(self.kinds))]
        for name, part in found.items():
            self._where.append(name)
            node.append(self.node(part))
            self._where.pop()
        return node


class _Thawer:
    """Builds the objects in the order in which they were met."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._objects: list[object] = []

    def value(self, node: Node) -> object:
        if not isinstance(node, list):
            return node
        what, *parts = node
        match what:
            case _Part.AGAIN:
                return self._objects[cast(int, parts[0])]
            case _Part.TUPLE:
                return tuple(map(self.value, parts))
            case _Part.LIST:
                return self._filled([], parts)
            case _Part.DICT:
                return self._dict(parts)
            case _Part.DEQUE:
                return self._filled(deque(maxlen=cast("int | None", parts[0])), parts[1:])
            case _Part.OBJECT:
                return self._object(*self._kinds[cast(int, parts[0])], parts[1:])
            case _:
                raise ValueError(f"there is no part {what!r}")

    def _filled(self, empty: list[object] | deque[object], parts: Sequence[Node]) -> object:
        self._objects.append(empty)
        empty.extend(map(self.value, parts))
        return empty

    def _dict(self, parts: Sequence[Node]) -> object:
        found: dict[object, object] = {}
        self._objects.append(found)
        values = iter(map(self.value, parts))
        found.update(zip(values, values, strict=True))
        return found

    def _object(self, kind: type, names: Sequence[str], parts: Sequence[Node]) -> object:
        number = len(self._objects)
        made: object = None if issubclass(kind, BaseModel | tuple) else object.__new__(kind)
        self._objects.append(made)
        values = dict(zip(names, map(self.value, parts), strict=True))
        if issubclass(kind, BaseModel):
            # Validation finds what was damaged; the parts stay those that others may refer to, too.
            made = self._objects[number] = kind.model_validate(values)
            made.__dict__.update(values)
        elif issubclass(kind, tuple):
            made = self._objects[number] = tuple.__new__(kind, values.values())
        else:
            for name, value in values.items():
                object.__setattr__(made, name, value)
        return made
