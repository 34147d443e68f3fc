"""The process that computes rewards, apart from the run's loops, so that a reward may take long, crash or never return.

    rewards.RewardRunner ──[number, prompt, answer, reference]──▶ worker: one after the other ──[number, value | failure]──▶ RewardRunner

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
from typing import Literal, cast

import msgpack

from bus.errors import ConfigError
from services.tasks import make_task

Reference = str | Sequence[int]
"""What the right answer is, as the task or the data set states it."""
RewardFunction = Callable[[Sequence[int], Sequence[int], Reference], float]
"""(prompt tokens, answer tokens, reference) -> reward."""
FailureReason = Literal["timeout", "raised", "not_a_number", "not_finite", "died"]

READY = -1
"""In place of a number: the reward function is loaded, or could not be."""

_PR_SET_PDEATHSIG = 1
_RECEIVE_BYTES = 1 << 16


def load_reward(reward: str) -> RewardFunction:
    """The reward function of a built-in task by its name, or `path/file.py:function`. Raises ConfigError."""
    if ":" not in reward:
        return cast(RewardFunction, make_task(reward).reward)
    file, _, name = reward.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"reward {reward}: there is no file {path.absolute()}")
    spec = importlib.util.spec_from_file_location(f"reward_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"reward {reward}: {path.absolute()} is no Python file: name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's module raises on import
        raise ConfigError(f"reward {reward}: importing {path.absolute()} failed:\n{traceback.format_exc()}") from error
    function: object = vars(module).get(name)
    if not callable(function):
        raise ConfigError(f"reward {reward}: {path.absolute()} has no function {name}")
    return cast(RewardFunction, function)


def compute(function: RewardFunction, prompt: Sequence[int], answer: Sequence[int], reference: Reference) -> float | tuple[FailureReason, str]:
    """The reward, or why there is none and what to tell about it."""
    try:
        value: object = function(prompt, answer, reference)
    except Exception:  # whatever a user's function raises is the outcome
        return "raised", traceback.format_exc()
    # numpy's numbers and the like know how to become a float; text does, too, but a reward of "1" is a mistake.
    if isinstance(value, (str, bytes)) or value is None:
        return "not_a_number", f"the reward function returned {value!r} of type {type(value).__name__}: return a float"
    try:
        number = float(cast(float, value))
    except (TypeError, ValueError):
        return "not_a_number", f"the reward function returned {value!r:.200} of type {type(value).__name__}: return a float"
    return number if math.isfinite(number) else ("not_finite", f"the reward function returned {number}: return a finite number")


def main(arguments: Sequence[str]) -> int:
    """The worker's life: `arguments` are the socket's descriptor, the parent's process id and the reward."""
    descriptor, parent, reward = int(arguments[0]), int(arguments[1]), arguments[2]
    _die_with(parent)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with socket.socket(fileno=descriptor) as channel:
        try:
            function = load_reward(reward)
        except ConfigError as error:
            channel.sendall(msgpack.packb([READY, str(error)]))
            return 1
        channel.sendall(msgpack.packb([READY, ""]))
        _serve(channel, function)
    return 0


def _serve(channel: socket.socket, function: RewardFunction) -> None:
    unpacker = msgpack.Unpacker(use_list=False)
    while data := channel.recv(_RECEIVE_BYTES):
        unpacker.feed(data)
        for number, prompt, answer, reference in unpacker:
            # One message a reward, at once: what is the first without an answer is what runs, so it is the one that is late.
            channel.sendall(msgpack.packb([number, compute(function, prompt, answer, reference)]))


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the line above.
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
