"""The process that computes rewards, apart from a service's loops, so that a reward may take long, crash or never return.

    rewards.RewardRunner ──[group, prompt, answers, reference]──▶ worker: one answer after the other, of an async function all at once
                         ◀──[group, reward] or [group, reason, detail]── for each, in the order of the answers

Both directions are msgpack on one socket; standard output goes to standard error, so that a reward may print. Imports no torch.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Iterator, Sequence
from typing import Literal, SupportsFloat, cast

import msgpack

from bus.die_with_parent import die_with
from bus.errors import ConfigError
from services.reward_functions import Reference, RewardSpec, TokenReward, load_reward, told

FailureReason = Literal["timeout", "raised", "not_a_number", "not_finite", "died"]
Reply = tuple[float] | tuple[FailureReason, str]
"""A reward, or why there is none."""

READY = "ready"
FAILED = "failed"

CANCEL_S = 1.0
"""How long an awaited reward that is of no use any more may take to end."""

_RECEIVE_BYTES = 1 << 16


class Scorer:
    """Scores groups of answers by one function, on one event loop for as long as the worker lives."""

    def __init__(self, function: TokenReward) -> None:
        self._function = function
        self._loop = asyncio.new_event_loop()

    def group(self, prompt: tuple[int, ...], answers: Sequence[tuple[int, ...]], reference: Reference) -> Iterator[Reply]:
        """A reply for each answer in order, ending with the first failure.

        A sync function is called for one answer after the other. What the calls of an async one return is awaited together.
        """
        waiting: list[asyncio.Task[Reply]] = []
        try:
            for answer in answers:
                begun = self._begin(prompt, answer, reference)
                if isinstance(begun, tuple):
                    yield begun
                    if len(begun) > 1:
                        return
                else:
                    waiting.append(self._loop.create_task(_awaited(begun)))
            for task in waiting:
                reply = self._loop.run_until_complete(task)
                yield reply
                if len(reply) > 1:
                    return
        finally:
            self._cancel(waiting)

    def _begin(self, prompt: tuple[int, ...], answer: tuple[int, ...], reference: Reference) -> Reply | Awaitable[float]:
        try:
            value: object = self._function(prompt, answer, reference)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's function raises is the outcome
            return "raised", told(error)
        return value if isinstance(value, Awaitable) else checked(value)

    def _cancel(self, tasks: Sequence[asyncio.Task[Reply]]) -> None:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_S))


async def _awaited(value: Awaitable[float]) -> Reply:
    try:
        return checked(await value)
    except Exception as error:  # noqa: BLE001 - as above
        return "raised", told(error)


def checked(value: object) -> Reply:
    """What a function returned as a reward, or what is wrong with it."""
    # Text knows how to become a float, too, but a reward of "1" is a mistake.
    if isinstance(value, str | bytes | bytearray):
        return _not_a_number(value)
    try:
        number = float(cast(SupportsFloat, value))
    except (TypeError, ValueError, OverflowError):
        return _not_a_number(value)
    return (number,) if math.isfinite(number) else ("not_finite", f"the reward function returned {number}: return a finite number")


def _not_a_number(value: object) -> Reply:
    return "not_a_number", f"the reward function returned {value!r:.200}, of type {type(value).__name__}: return a float"


def main(arguments: Sequence[str]) -> int:
    """The worker's life. `arguments`: the socket's descriptor, the parent's process id, the reward as JSON, and cores to run on (or "")."""
    descriptor, parent, reward, cores = int(arguments[0]), int(arguments[1]), RewardSpec.from_json(arguments[2]), arguments[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent, signal.SIGKILL)
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
        _serve(channel, Scorer(function))
    return 0


def _serve(channel: socket.socket, scorer: Scorer) -> None:
    # The parent bounds what is in flight; a limit here would be a second one to keep in step with it.
    groups = msgpack.Unpacker(use_list=False, max_buffer_size=0)
    while data := channel.recv(_RECEIVE_BYTES):
        groups.feed(data)
        for number, prompt, answers, reference in groups:
            for reply in scorer.group(prompt, answers, reference):
                # A message for each answer: the first without one is the one that runs, so that is the one that is late.
                channel.sendall(msgpack.packb([number, *reply]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
