"""The process that computes rewards, apart from a service's loops, so that a reward may take long, crash or never return.

    rewards.RewardRunner ──[group, prompt, answers, reference]──▶ worker: one answer after the other
                         ◀──[group, reward] or [group, reason, detail]── after each

Both directions are msgpack on one socket; standard output goes to standard error, so that a reward may print. Imports no torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, SupportsFloat, cast

import msgpack

from bus.errors import ConfigError
from services.tasks import get_task

Reference = str | Sequence[int]
"""What the right answer is, as the task or the data set states it."""
RewardFunction = Callable[[Sequence[int], Sequence[int], Reference], float]
"""(prompt tokens, answer tokens, reference) -> reward; it gets tuples."""
FailureReason = Literal["timeout", "raised", "not_a_number", "not_finite", "died"]

READY = "ready"
FAILED = "failed"
MAX_DETAIL = 8_000
"""Characters of a traceback that are sent on: its end, where the error is."""

_PR_SET_PDEATHSIG = 1
_RECEIVE_BYTES = 1 << 16


def load_reward(reward: str) -> RewardFunction:
    """The reward function of a built-in task by its name, or `path/file.py:function`. Raises ConfigError."""
    if ":" not in reward:
        return cast(RewardFunction, get_task(reward).reward)
    file, _, name = reward.rpartition(":")
    path = Path(file).absolute()
    spec = importlib.util.spec_from_file_location(f"reward_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"reward {reward}: {path} is no Python file: write `path/file.py:function`, or the name of a built-in task")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(f"reward {reward}: importing {path} failed:\n{_traceback()}") from error
    function: object = vars(module).get(name)
    if not callable(function):
        raise ConfigError(f"reward {reward}: {path} has no function {name}")
    return cast(RewardFunction, function)


def compute(
    function: RewardFunction, prompt: Sequence[int], answer: Sequence[int], reference: Reference
) -> tuple[float] | tuple[FailureReason, str]:
    """The reward, or why there is none."""
    try:
        value: object = function(prompt, answer, reference)
    except Exception:  # noqa: BLE001 - whatever a user's function raises is the outcome
        return "raised", _traceback()
    # Text knows how to become a float, too, but a reward of "1" is a mistake.
    if isinstance(value, str | bytes | bytearray):
        return _not_a_number(value)
    try:
        number = float(cast(SupportsFloat, value))
    except (TypeError, ValueError):
        return _not_a_number(value)
    return (number,) if math.isfinite(number) else ("not_finite", f"the reward function returned {number}: return a finite number")


def _not_a_number(value: object) -> tuple[FailureReason, str]:
    return "not_a_number", f"the reward function returned {value!r:.200}, of type {type(value).__name__}: return a float"


def _traceback() -> str:
    return traceback.format_exc()[-MAX_DETAIL:]


def main(arguments: Sequence[str]) -> int:
    """The worker's life. `arguments`: the socket's descriptor, the parent's process id, the reward, and cores to run on (or "")."""
    descriptor, parent, reward, cores = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    _die_with(parent)
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.set_inheritable(descriptor, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with socket.socket(fileno=descriptor) as channel:
        try:
            function = load_reward(reward)
        except ConfigError as error:
            channel.sendall(msgpack.packb([FAILED, str(error)]))
            return 1
        channel.sendall(msgpack.packb([READY]))
        _serve(channel, function)
    return 0


def _serve(channel: socket.socket, function: RewardFunction) -> None:
    # The parent bounds what is in flight; a limit here would be a second one to keep in step with it.
    groups = msgpack.Unpacker(use_list=False, max_buffer_size=0)
    while data := channel.recv(_RECEIVE_BYTES):
        groups.feed(data)
        for number, prompt, answers, reference in groups:
            for answer in answers:
                outcome = compute(function, prompt, answer, reference)
                # A message after each answer: the first without one is the one that runs, so that is the one that is late.
                channel.sendall(msgpack.packb([number, *outcome]))
                if len(outcome) > 1:
                    break


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the line above.
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
