"""What the file of a user's policy may say: read before it is run, so that a mistake is told with its line.

It is no sandbox. It keeps out what makes a policy say something else next time: clocks, files, random numbers, other modules of the user's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from bus.errors import ConfigError

ALLOWED = (
    "__future__", "bus.books", "bus.entry", "bus.events", "collections", "dataclasses", "enum", "math", "policies", "pydantic", "typing",
)  # fmt: skip
"""What may be imported; a module's own submodules with it."""
ADVICE = {
    "breakpoint": "a policy runs without a terminal: try it with `swingshift policy test`",
    "compile": "a policy is the text that is recorded, and no more",
    "eval": "a policy is the text that is recorded, and no more",
    "exec": "a policy is the text that is recorded, and no more",
    "globals": "keep what is to be remembered in self",
    "hash": "it differs from process to process: compare the values themselves",
    "id": "it differs from process to process: compare the values themselves",
    "input": "a policy runs without a terminal: make it a setting",
    "open": "a policy reads nothing but the log: make it a setting",
    "print": "put the numbers into the verdict's evidence, which is recorded",
    "__import__": "write an import at the top",
}
"""Built-in functions that a policy cannot use, and what to do instead."""
RANDOM = "a policy must say the same when it is replayed: rotate by view.boundary.version instead"
TIME = "seconds come from the view, which takes them from the log"
FILES = "a policy reads nothing but the log: make it a setting"
INSTEAD = {
    "random": RANDOM, "secrets": RANDOM, "uuid": RANDOM, "time": TIME, "datetime": TIME, "os": FILES, "pathlib": FILES, "io": FILES,
    "numpy": "math and plain lists will do", "statistics": "take math.fsum(values) / len(values)", "logging": ADVICE["print"],
}  # fmt: skip
"""By module: what to do instead of importing it."""


def imports_verl(tree: ast.AST) -> bool:
    """It is written against verl's interface: it runs in a process of its own, under no rules of ours."""
    modules = [module for node in ast.walk(tree) for module in _modules(node)]
    # The second as verl's own files do it.
    return any(module.partition(".")[0] == "verl" or module == ".base.DynamicSchedulePolicyBase" for module in modules)


def check_rules(name: str, file: str, tree: ast.Module) -> None:
    """Raises ConfigError for the first thing that a policy's file may not say, naming all others by their lines."""
    found = sorted([*_imports(tree), *_calls(tree)])
    if found:
        line, what = found[0]
        more = f"\nalso line {', '.join(str(other) for other, _ in found[1:])}" if found[1:] else ""
        raise ConfigError(f"policy {name}: {file}, line {line}: {what}{more}")


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for module in _modules(node):
            if not _is_allowed(module):
                first = module.partition(".")[0]
                reason = INSTEAD.get(first, "whatever a policy uses must be in its file, which is recorded")
                yield getattr(node, "lineno", 0), f"imports {module}: {reason}. It may import {', '.join(ALLOWED)}"


def _modules(node: ast.AST) -> list[str]:
    """The modules that a statement imports; `from a import b` is `a.b` unless `a` itself is allowed."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [module] if _is_allowed(module) else [f"{module}.{alias.name}".lstrip() for alias in node.names]
    return []


def _is_allowed(module: str) -> bool:
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in ALLOWED)


def _calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ADVICE:
            yield node.lineno, f"uses {node.id}: {ADVICE[node.id]}"
