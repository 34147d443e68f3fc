"""The policy that is tried: how to make it anew, and where in its file something is said."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from bus.errors import PolicyFailed
from bus.events import Value
from policies.protocol import Policy
from services.policy.file_rules import imports_verl
from services.policy.loading import syntax_of, told
from services.policy.making import make_policy
from services.policy.source import file_and_class, is_in_file


@dataclass(frozen=True)
class Tried:
    """What `swingshift policy test` was asked to try."""

    name: str
    params: Mapping[str, Value]
    source: str = ""

    def make(self) -> Policy:
        """A new one. Raises ConfigError."""
        return make_policy(self.name, self.params, self.source)

    @property
    def file(self) -> str:
        """The user's path; empty for a built-in policy."""
        return file_and_class(self.name)[0] if is_in_file(self.name) else ""

    @property
    def is_verl(self) -> bool:
        """Its file is written against verl's interface and runs in a process of its own."""
        return self._tree is not None and imports_verl(self._tree)

    @cached_property
    def _tree(self) -> ast.Module | None:
        return syntax_of(self.name, self.source) if self.file else None

    def method(self, name: str) -> str:
        """Where a method of its class begins; empty where that cannot be said."""
        found = [node for node in self._nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name]
        return self._line(found[0].lineno) if found else ""

    def attribute(self, name: str) -> str:
        """Where an attribute of it is set, not for the first time, if that can be told apart."""
        nodes = [node for node in self._nodes() if isinstance(node, ast.Attribute) and node.attr == name]
        stores = sorted(node.lineno for node in nodes if isinstance(node.ctx, ast.Store))
        found = stores[1:] or stores or sorted(node.lineno for node in nodes)
        return self._line(found[0]) if found else ""

    def raised(self, error: BaseException) -> tuple[str, str]:
        """What the policy's own code raised, and where: the lines of the traceback from its file on."""
        cause = error.__cause__ if isinstance(error, PolicyFailed) and error.__cause__ is not None else error
        return f"{type(cause).__name__}: {cause}", told(cause, self.file)

    def _nodes(self) -> Iterator[ast.AST]:
        """Of its own class, if that is in the file."""
        if self._tree is None:
            return
        name = file_and_class(self.name)[1]
        classes = [node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef) and node.name == name]
        yield from ast.walk(classes[0] if classes else self._tree)

    def _line(self, number: int) -> str:
        lines = self.source.splitlines()
        return f"{self.file}, line {number}: {lines[number - 1].strip() if number <= len(lines) else ''}"
