"""Deterministic code imports nothing that could make it otherwise, and nobody imports the command line.

import-linter holds the order of the packages; it has no contract for the standard library, so the allow-list is checked here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PURE = (
    "bus/books.py",
    "bus/core.py",
    "bus/entry.py",
    "bus/evaluations.py",
    "bus/errors.py",
    "bus/events/*.py",
    "policies/*.py",
    "bus/reach.py",
    "bus/requests.py",
    "bus/settings.py",
    "bus/sources.py",
    "services/*/core.py",
    "services/controller/boundary.py",
    "services/controller/ending.py",
    "services/controller/expected.py",
    "services/controller/failures.py",
    "services/controller/lent.py",
    "services/controller/stall.py",
    "services/controller/watch.py",
    "services/controller/replicas.py",
    "services/controller/swing.py",
    "services/learner/micro_batches.py",
    "services/policy/answers.py",
    "services/rollouter/evaluation.py",
    "services/rollouter/free_slots.py",
    "services/rollouter/groups.py",
    "services/rollouter/routes.py",
    "services/trainer/kept.py",
    "services/trainer/shares.py",
    "services/trainer/staleness.py",
)
"""Files that must decide the same from the same log, anywhere and at any time."""

ALLOWED = (
    "__future__",
    "bisect",
    "bus.books",
    "bus.core",
    "bus.entry",
    "bus.errors",
    "bus.evaluations",
    "bus.events",
    "bus.reach",
    "bus.requests",
    "bus.settings",
    "bus.sources",
    "collections",
    "dataclasses",
    "enum",
    "math",
    "policies",
    "pydantic",
    "services.*.core",
    "services.controller.boundary",
    "services.controller.ending",
    "services.controller.expected",
    "services.controller.failures",
    "services.controller.lent",
    "services.controller.stall",
    "services.controller.watch",
    "services.controller.replicas",
    "services.controller.swing",
    "services.learner.micro_batches",
    "services.policy.answers",
    "services.rollouter.evaluation",
    "services.rollouter.free_slots",
    "services.rollouter.groups",
    "services.rollouter.routes",
    "services.trainer.kept",
    "services.trainer.shares",
    "services.trainer.staleness",
    "typing",
)
"""Modules they may import; a module's own submodules are allowed with it."""

IMPURE_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"})


def is_allowed(module: str) -> bool:
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in ALLOWED)


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of each import, also of those inside functions; `from a import b` is `a.b` unless `a` itself is allowed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, module if is_allowed(module) else f"{module}.{alias.name}") for alias in node.names)


def forbidden_imports(source: str) -> list[str]:
    return [f"line {line}: {module}" for line, module in imported_modules(ast.parse(source)) if not is_allowed(module)]


def impure_calls(source: str) -> list[str]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {call.lineno}: {call.func.id}" for call in calls if isinstance(call.func, ast.Name) and call.func.id in IMPURE_BUILTINS]


def pure_files() -> list[Path]:
    return sorted(path for pattern in PURE for path in ROOT.glob(pattern))


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_code_imports_only_from_the_allow_list(path: Path) -> None:
    assert forbidden_imports(path.read_text()) == []


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_code_calls_no_builtin_that_depends_on_the_process_or_does_io(path: Path) -> None:
    assert impure_calls(path.read_text()) == []


@pytest.mark.parametrize("service", ["controller", "policy", "rollouter", "trainer"])
def test_every_core_is_under_the_rule(service: str) -> None:
    assert ROOT / "services" / service / "core.py" in pure_files()


def test_books_policies_and_events_are_under_the_rule() -> None:
    covered = {str(path.relative_to(ROOT)) for path in pure_files()}
    assert any(path.endswith("/books.py") for path in covered)
    assert any(path.startswith("policies/") and path != "policies/__init__.py" for path in covered)
    assert any(path.startswith("bus/events") for path in covered)


@pytest.mark.parametrize("package", ["bus", "policies", "replay", "services"])
def test_no_package_imports_the_command_line(package: str) -> None:
    imports = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, module in imported_modules(ast.parse(path.read_text()))
        if module.split(".")[0] == "swingshift"
    }
    assert imports == set()


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import random as r",
        "from os import environ",
        "import bus.redis_log",
        "from bus import codec",
        "from services import samples",
        "from services.trainer import shell",
        "from services.trainer.shell import run",
        "from . import shell",
        "def f():\n    import torch",
        "import mathematics",
    ],
)
def test_an_import_outside_the_allow_list_is_found(line: str) -> None:
    assert len(forbidden_imports(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import math",
        "from collections.abc import Mapping",
        "from bus.events import StepDone",
        "from bus import entry, events",
        "from services.trainer import core",
        "from services.trainer.core import TrainerCore",
        "from policies.default import Default",
    ],
)
def test_an_import_on_the_allow_list_passes(line: str) -> None:
    assert forbidden_imports(line) == []


def test_a_call_of_an_impure_builtin_is_found() -> None:
    assert impure_calls("x = id(y) + hash(z)") == ["line 1: id", "line 1: hash"]
