"""From the text of a user's file to the class in it: run as a module of its own, under a name that its text gives it.

The same text is the same module, in every process: what a snapshot says of a class in it is true elsewhere, too. Tracebacks show the
user's path and line.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
import threading
import traceback
from types import ModuleType

from bus.errors import ConfigError
from policies.base import PolicyBase
from policies.registry import nearest
from services.code import parsed
from services.policy.file_rules import check_rules
from services.policy.source import file_and_class

PREFIX = "policies.of_file_"
"""Below `policies`, for its objects are kept in snapshots as those of the policies are that lie there."""
MAX_DETAIL = 4_000
"""Characters of a traceback that are told: its end, where the error is."""
_LOADING = threading.RLock()


def syntax_of(name: str, source: str) -> ast.Module:
    """The file's syntax tree. Raises ConfigError."""
    file, _ = file_and_class(name)
    if not source:
        raise ConfigError(f"policy {name}: {file} is empty, or its text is not recorded: there is nothing to make it of")
    try:
        return parsed(source, file)
    except SyntaxError as error:
        shown = f"\n    {error.text.strip()}" if error.text else ""
        raise ConfigError(f"policy {name}: {file}, line {error.lineno}: {error.msg}{shown}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"policy {name}: {file} is no Python: {error}") from error


def load_class(name: str, source: str) -> type[PolicyBase]:
    """The class that `name` names, from the text of its file. Raises ConfigError."""
    file, class_name = file_and_class(name)
    tree = syntax_of(name, source)
    check_rules(name, file, tree)
    with _LOADING:
        module = _module(name, file, source, tree)
    found: object = vars(module).get(class_name)
    if not isinstance(found, type):
        own = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__]
        guess = f"did you mean {nearest(class_name, tuple(own))}? It has {', '.join(own)}" if own else "it has none at all"
        raise ConfigError(f"policy {name}: {file} has no class {class_name}: {guess}")
    if not issubclass(found, PolicyBase):
        line = line_of(tree, class_name)
        raise ConfigError(f"policy {name}: {file}, line {line}: {class_name} is no policy: write `class {class_name}(PolicyBase):`")
    if found.verdict is PolicyBase.verdict:
        line = line_of(tree, class_name)
        raise ConfigError(f"policy {name}: {file}, line {line}: {class_name} has no method `verdict(self, view)`, which answers a boundary")
    return found


def line_of(tree: ast.Module, class_name: str) -> int:
    """Where a class begins; 1 where that cannot be said."""
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == class_name), 1)


def told(error: BaseException, file: str) -> str:
    """The exception's traceback from the user's own code on, its end if it is long."""
    trace = first = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or first))[-MAX_DETAIL:].rstrip()


def _module(name: str, file: str, source: str, tree: ast.Module) -> ModuleType:
    own_name = PREFIX + hashlib.blake2b(f"{file}\n{source}".encode(), digest_size=8).hexdigest()
    # The file may be elsewhere, or another by now: the lines that a traceback shows are those that run.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    known = sys.modules.get(own_name)
    if known is not None:
        return known
    module = ModuleType(own_name, ast.get_docstring(tree))
    module.__file__ = file
    sys.modules[own_name] = module
    try:
        exec(compile(tree, file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        del sys.modules[own_name]
        raise ConfigError(f"policy {name}: running {file} failed:\n{told(error, file)}") from error
    return module
