"""The process that runs one policy written for verl, apart from whoever asks it: it may print, take long, or crash.

    verl_process.VerlProcess ──["load", file, text, class] ["make", …] ["call", method, …] …──▶ here
                             ◀──["ok", value, what was printed, lines too many] or ["failed", where and why, …]── for each, in order

Both directions are msgpack on one socket. Standard output goes to standard error. Imports nothing of ours but stand-ins and `die_with`.
"""

from __future__ import annotations

import inspect
import io
import linecache
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import ModuleType
from typing import SupportsInt, cast

import msgpack

from bus.die_with_parent import die_with
from services.policy import verl_names
from services.policy.verl_builtins import MODULES
from services.policy.verl_names import REGISTERED, DynamicScheduleContext, DynamicSchedulePolicyBase, Kind, Rollouter

OK, FAILED = "ok", "failed"
PLAIN = (str, int, float, bool, type(None))
MAX_LINES = 200
"""Printed lines that go with one reply; the others are counted."""
MAX_LINE = 1_000
"""Characters of a printed line."""
MAX_DETAIL = 4_000
"""Characters of a traceback that are told: its end, where the error is."""
PEEK_S = 1.0
"""How long a look ahead may take."""
_RECEIVE_BYTES = 1 << 16


class Printed(io.TextIOBase):
    """Standard output and error of the file: lines that wait for the next reply."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._begun = ""
        self._too_many = 0

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        self._begun = self._begun[:MAX_LINE]
        room = MAX_LINES - len(self._lines)
        self._lines += [line[:MAX_LINE] for line in lines[:room]]
        self._too_many += max(0, len(lines) - room)
        return len(text)

    def taken(self) -> tuple[list[str], int]:
        """What was printed since, and how many lines of it are left out."""
        found = self._lines, self._too_many
        self._lines, self._too_many = [], 0
        return found


class Runner:
    """The file's class, an instance of it, and the context that it sees."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._policy: DynamicSchedulePolicyBase | None = None
        self._context: DynamicScheduleContext | None = None
        self._rollouter = Rollouter()

    def load(self, file: str, text: str, class_name: str) -> object:
        """Runs the file; returns the arguments of the class's constructor: name -> (it has a default, the default if that is plain)."""
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        module = ModuleType(f"{verl_names.PACKAGE}._policy")
        module.__file__ = file
        # Relative imports, as in verl's own files, find the stand-ins.
        module.__package__ = verl_names.PACKAGE
        sys.modules[module.__name__] = module
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
        found: object = vars(module).get(class_name) or REGISTERED.get(class_name)
        if not (isinstance(found, type) and issubclass(found, DynamicSchedulePolicyBase)):
            own = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__]
            raise LookupError(f"there is no policy {class_name} in it; its classes: {', '.join(own) or 'none'}")
        self._kind = found
        return _arguments(found)

    def make(self, settings: Mapping[str, object], required_samples: int, trigger_parameter_sync_step: int, only_hybrid: bool) -> object:
        """A new instance, and a new context."""
        assert self._kind is not None
        self._policy = self._kind(**settings)
        self._rollouter = Rollouter()
        self._policy._rollouter = self._rollouter  # noqa: SLF001  (verl's name for it)
        self._context = DynamicScheduleContext(required_samples, trigger_parameter_sync_step, only_hybrid=only_hybrid)
        return None

    def begin_step(self, global_steps: int, active: bool) -> int | None:
        """A step begins: the number of samples for which the devices are to come back, None: they are not to."""
        if not self._made.should_deactivate(global_steps, active, self._seen):
            return None
        return _whole(self._made.deactivate_wait_samples(self._seen))

    def activate(self, global_steps: int, active: bool, changes: Mapping[str, object]) -> bool:
        """A cycle is over: are the devices to be lent? `changes`: what is new in the context."""
        for name, value in changes.items():
            setattr(self._seen, name, value)
        return bool(self._made.should_activate_after_step(global_steps, active, self._seen))

    def rebalance(self, global_steps: int) -> bool:
        """The devices are lent: are the requests to be spread anew?"""
        rollouter = self._rollouter
        rollouter.asked = rollouter.looked_at = False
        said: object = self._made.request_rebalance(global_steps, self._seen)  # type: ignore[func-returns-value]  # a user's may
        # Who does not know the rollouter's handle can only mean the call itself.
        does_nothing = said is None and _is_empty(self._made.request_rebalance)
        return rollouter.asked or (not rollouter.looked_at and said is not False and not does_nothing)

    def update(self, global_steps: int, activation_s: float) -> None:
        """The boundary is over, the lend that it led to took so long (0: it led to none)."""
        context = self._seen
        context.last_activate_duration_s = activation_s
        self._made.update_after_step(global_steps, context)
        context.last_activate_duration_s = context.last_deactivate_duration_s = 0.0

    def ratio(self) -> float | None:
        """The `deactivate_ratio` that such policies have, if this one does."""
        found = vars(self._made).get("deactivate_ratio")
        return float(found) if isinstance(found, int | float) else None

    def peek(self, global_steps: int, activation_s: float, update: bool) -> int | None:
        """What `begin_step` would say if the devices were lent now, in a copy of this process: here nothing changes. None: unknown."""
        reading, writing = os.pipe()
        copy = os.fork()
        if copy == 0:
            try:
                if update:
                    self.update(global_steps, activation_s)
                os.write(writing, msgpack.packb(self.begin_step(global_steps, True)))
            finally:
                os._exit(0)
        os.close(writing)
        try:
            answered, _, _ = select.select([reading], [], [], PEEK_S)
            data = os.read(reading, _RECEIVE_BYTES) if answered else b""
            return cast("int | None", msgpack.unpackb(data)) if data else None
        finally:
            os.close(reading)
            os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)

    @property
    def _made(self) -> DynamicSchedulePolicyBase:
        assert self._policy is not None
        return self._policy

    @property
    def _seen(self) -> DynamicScheduleContext:
        assert self._context is not None
        return self._context


def _arguments(kind: Kind) -> dict[str, tuple[bool, object]]:
    found: dict[str, tuple[bool, object]] = {}
    for argument in inspect.signature(kind).parameters.values():
        if argument.kind == argument.VAR_KEYWORD:
            found["**"] = (True, None)
        elif argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            has_default = argument.default is not argument.empty
            found[argument.name] = (has_default, argument.default if has_default and isinstance(argument.default, PLAIN) else None)
    return found


def _whole(value: object) -> int:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"deactivate_wait_samples returned {value}: return a number of samples")
    try:
        return max(0, int(cast(SupportsInt, value)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"deactivate_wait_samples returned {value!r}: return a number of samples") from error


def _nothing() -> None:
    pass


def _is_empty(method: Callable[..., object]) -> bool:
    """It has no more than `return`, a docstring perhaps."""
    function: object = getattr(method, "__func__", method)
    if not inspect.isfunction(function):
        return False
    return len(function.__code__.co_code) == len(_nothing.__code__.co_code) and not function.__code__.co_names


def main(arguments: Sequence[str]) -> int:
    """The process's life. `arguments`: the socket's descriptor and the parent's process id."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent, signal.SIGKILL)
    os.set_inheritable(descriptor, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    printed = Printed()
    sys.stdout = sys.stderr = printed
    random.seed(0)
    verl_names.install(MODULES)
    with socket.socket(fileno=descriptor) as channel:
        _serve(channel, Runner(), printed)
    return 0


def _serve(channel: socket.socket, runner: Runner, printed: Printed) -> None:
    methods: dict[str, Callable[..., object]] = {
        name: getattr(runner, name) for name in ("load", "make", "begin_step", "activate", "rebalance", "update", "ratio", "peek")
    }
    questions = msgpack.Unpacker(max_buffer_size=0)
    file = ""
    while data := channel.recv(_RECEIVE_BYTES):
        questions.feed(data)
        for method, arguments in questions:
            file = arguments[0] if method == "load" else file
            try:
                reply: tuple[object, ...] = (OK, methods[method](*arguments))
            except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a user's code raises is the outcome)
                reply = (FAILED, _where(error, file), _trace(error, file))
            channel.sendall(msgpack.packb([*reply, *printed.taken()]))


def _where(error: BaseException, file: str) -> str:
    """`, line 12, in method: ZeroDivisionError: division by zero`."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f", line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not frames:
        return f": {error}"
    return f", line {frames[-1].lineno}, in {frames[-1].name}: {type(error).__name__}: {error}"


def _trace(error: BaseException, file: str) -> str:
    """From the user's own code on; empty if it raised nowhere in that."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return "" if trace is None else "\n" + "".join(traceback.format_exception(type(error), error, trace))[-MAX_DETAIL:].rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
