"""A digest of the code that decides: the sources of some modules and of everything of ours that they import.

The same on every machine that has the same sources, wherever they lie; recorded in `ServiceStarted`, so that a verification knows whether
an incarnation ran the code that it compares with.
"""

from __future__ import annotations

import ast
import hashlib
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("bus", "policies", "services")
DIGEST_BYTES = 8
_PARSING = threading.Lock()
"""Python 3.11 loses count of its depth when two threads parse at once, which services in one process may do."""


def code_digest(*modules: str, text: str = "") -> str:
    """Digest over `modules` (dotted names, a package stands for all of its modules) and what they import of ours, in hex.

    `text`: source that lies in no module of ours, such as a user's policy; what it imports of ours counts, too.
    """
    total = hashlib.blake2b(digest_size=DIGEST_BYTES)
    imported = _ours(parsed(text)) if text else ()
    for module in sorted(_closure((*modules, *imported))):
        source = _file(module)
        assert source is not None
        content = source.read_bytes()
        total.update(f"{module}\n{len(content)}\n".encode())
        total.update(content)
    total.update(text.encode())
    return total.hexdigest()


@cache
def service_code(service: str, policy_module: str = "", policy_text: str = "") -> str:
    """The digest of what decides in a service: its core; of a policy also the policy itself; of a replica, which has no core, its shell."""
    match service:
        case "trainer" | "rollouter" | "controller":
            return code_digest(f"services.{service}.core")
        case "policy":
            return code_digest("services.policy.core", *([policy_module] if policy_module else []), text=policy_text)
        case _:
            return code_digest(f"services.{service}.shell")


def parsed(source: str | bytes, file: str = "<text>") -> ast.Module:
    """The syntax tree. Raises SyntaxError, ValueError."""
    with _PARSING:
        return ast.parse(source, file)


def _closure(modules: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    waiting = [inner for module in modules for inner in _with_submodules(module)]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        waiting += _imports(module)
    return found


def _with_submodules(module: str) -> list[str]:
    source = _file(module)
    if source is None:
        raise ValueError(f"there is no module {module!r} below {', '.join(PACKAGES)}")
    if source.name != "__init__.py":
        return [module]
    names = [path.relative_to(ROOT).with_suffix("").parts for path in sorted(source.parent.rglob("*.py"))]
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names]


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Modules of ours that a module imports, anywhere in it, with the packages they lie in."""
    source = _file(module)
    assert source is not None
    return _ours(parsed(source.read_bytes()))


def _ours(tree: ast.AST) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outer for name in _imported_names(tree) for outer in _prefixes(name)))


def _imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _prefixes(name: str) -> Iterator[str]:
    """`bus.events.run.RunPlanned` -> bus, bus.events, bus.events.run: what is a module of ours among them."""
    parts = name.split(".")
    if parts[0] in PACKAGES:
        yield from (prefix for end in range(1, len(parts) + 1) if _file(prefix := ".".join(parts[:end])) is not None)


def _file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    if module.split(".")[0] not in PACKAGES:
        return None
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None
