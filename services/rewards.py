"""Computes rewards in worker processes, so that a reward may take long, crash or never return without anything else waiting for it.

    submit ──▶ waiting ──▶ worker (at most 2 groups each) ──▶ poll: the rewards of a group, or why there are none
                  ▲           │ late or dead: killed, its exit awaited, replaced
                  └── groups behind the one that failed

Every submitted group has exactly one outcome. `submit` may be called from another thread than the rest.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgpack

from bus.errors import ConfigError
from services.reward_functions import Reference, RewardSpec
from services.reward_worker import FAILED, READY, FailureReason

logger = logging.getLogger(__name__)

GROUPS_IN_FLIGHT = 2
"""Per worker: one that is computed and one that need not be waited for."""
START_TIMEOUT_S = 60.0
_RECEIVE_BYTES = 1 << 16
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class RewardFailure:
    """Why a group has no rewards: the first of its answers (by place) that has none, and a traceback or what was returned."""

    reason: FailureReason
    answer: int
    detail: str

    def told(self, max_characters: int) -> str:
        """In words: what happened, then the detail; of a long one its end, for that is where a traceback says what is wrong."""
        words = {"raised": "the reward raised", "timeout": "the reward is late", "died": "the reward's process ended"}
        said = f"{words.get(self.reason, 'the reward is no finite number')} (answer {self.answer}): "
        room = max_characters - len(said)
        return said + (self.detail if len(self.detail) <= room else "…" + self.detail[1 - room :]).strip()


Outcome = tuple[float, ...] | RewardFailure


@dataclass(slots=True)
class _Group:
    number: int
    key: int
    num_answers: int
    message: bytes
    rewards: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    deadline: float
    replies: msgpack.Unpacker = field(default_factory=lambda: msgpack.Unpacker(use_list=False))
    unsent: bytes = b""
    ready: bool = False
    groups: deque[_Group] = field(default_factory=deque)


class RewardRunner:
    """Rewards by one function; each answer may take `timeout_s`, or all of a group together where the function is async.

    Without `cores` the workers run where this process may. A worker dies with the thread that called `start` (Linux), as with the process.
    """

    def __init__(self, reward: RewardSpec, workers: int = 1, timeout_s: float = 30.0, cores: Sequence[int] = ()) -> None:
        self._reward = reward
        self._num_workers = workers
        self._timeout_s = timeout_s
        self._cores = ",".join(map(str, cores))
        self._workers: list[_Worker] = []
        self._waiting: deque[_Group] = deque()
        self._lock = threading.Lock()
        self._submitted = 0
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._outcomes: list[tuple[int, Outcome]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Starts the workers and waits until they have loaded the reward. Raises ConfigError when it cannot be loaded."""
        try:
            for _ in range(self._num_workers):
                self._add_worker()
            while not all(worker.ready for worker in self._workers):
                self._turn(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def submit(self, key: int, prompt_tokens: Sequence[int], answers: Sequence[Sequence[int]], reference: Reference) -> None:
        """Asks for the rewards of all answers to one prompt; they come under `key`."""
        with self._lock:
            self._submitted += 1
            number = self._submitted
            message: bytes = msgpack.packb([number, prompt_tokens, answers, reference])
            self._waiting.append(_Group(number, key, len(answers), message))
        with suppress(BlockingIOError):  # it has been rung often enough
            self._ringer.send(b"!")

    def allow(self, timeout_s: float) -> None:
        """From now on an answer may take this long; those that are computed keep their time."""
        self._timeout_s = timeout_s

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        """Outcomes that are there, waiting at most `timeout_s` for the first. Raises ConfigError when a worker cannot be replaced."""
        until = time.monotonic() + timeout_s
        while True:
            self._turn(until - time.monotonic())
            if self._outcomes or time.monotonic() >= until:
                outcomes, self._outcomes = self._outcomes, []
                return outcomes

    def close(self) -> None:
        """Ends all workers, whatever they are doing; what is submitted gets no outcome."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._selector.close()
        self._bell.close()
        self._ringer.close()

    def _turn(self, timeout_s: float) -> None:
        """Hands out groups, waits for the sockets once, and takes what came; reading comes before judging who is late."""
        self._hand_out()
        now = time.monotonic()
        wait = min([timeout_s, *(worker.deadline - now for worker in self._workers)])
        for ready, events in self._selector.select(max(0.0, wait)):
            worker: _Worker | None = ready.data
            if worker is None:
                self._bell.recv(_RECEIVE_BYTES)
            elif events & selectors.EVENT_READ:
                self._read(worker)
            elif events & selectors.EVENT_WRITE:
                self._write(worker)
        self._hand_out()
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.deadline <= now]:
            self._replace(worker, "timeout", f"there was no reward within {self._timeout_s} s, so the worker was ended")

    def _hand_out(self) -> None:
        with self._lock:
            while self._waiting:
                free = [worker for worker in self._workers if worker.ready and len(worker.groups) < GROUPS_IN_FLIGHT]
                if not free:
                    return
                self._give(min(free, key=lambda worker: len(worker.groups)), self._waiting.popleft())

    def _give(self, worker: _Worker, group: _Group) -> None:
        if group.num_answers == 0:
            self._outcomes.append((group.key, ()))
            return
        if not worker.groups:
            worker.deadline = time.monotonic() + self._timeout_s
        worker.groups.append(group)
        worker.unsent += group.message
        self._write(worker)

    def _write(self, worker: _Worker) -> None:
        try:
            sent = worker.channel.send(worker.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(worker.unsent)  # it is dead: reading will tell
        worker.unsent = worker.unsent[sent:]
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        self._selector.modify(worker.channel, interest, worker)

    def _read(self, worker: _Worker) -> None:
        try:
            data = worker.channel.recv(_RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._replace(worker, "died", "the worker ended while it computed this reward")
            return
        worker.replies.feed(data)
        for reply in worker.replies:
            self._take(worker, reply)
        worker.deadline = time.monotonic() + self._timeout_s if worker.groups else math.inf

    def _take(self, worker: _Worker, reply: tuple[object, ...]) -> None:
        if reply[0] == FAILED:
            raise ConfigError(str(reply[1]))
        if reply[0] == READY:
            worker.ready = True
            return
        group = worker.groups[0]
        assert reply[0] == group.number, f"a reward worker answered for group {reply[0]}, not {group.number}"
        match reply[1:]:
            case (float(reward),):
                group.rewards.append(reward)
                if len(group.rewards) == group.num_answers:
                    worker.groups.popleft()
                    self._outcomes.append((group.key, tuple(group.rewards)))
            case ("raised" | "not_a_number" | "not_finite" as reason, str(detail)):
                worker.groups.popleft()
                self._outcomes.append((group.key, RewardFailure(reason, len(group.rewards), detail)))

    def _replace(self, worker: _Worker, reason: FailureReason, detail: str) -> None:
        """Ends a worker that is late or dead: the group it was at fails, those behind it go back to the front of the queue."""
        self._selector.unregister(worker.channel)
        exit_code = _end(worker)
        self._workers.remove(worker)
        detail = f"{detail} (exit code {exit_code})"
        if not worker.ready:
            raise ConfigError(
                f"data.reward is {self._reward.reward}: a worker was not ready within {START_TIMEOUT_S} s: {detail}; see its output"
            )
        logger.warning("reward worker replaced reason=%s exit_code=%s groups=%d", reason, exit_code, len(worker.groups))
        if worker.groups:
            failed = worker.groups.popleft()
            self._outcomes.append((failed.key, RewardFailure(reason, len(failed.rewards), detail)))
        with self._lock:
            self._waiting.extendleft(reversed(worker.groups))
        self._add_worker()

    def _add_worker(self) -> None:
        here, there = socket.socketpair()
        with there:
            path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            arguments = [str(there.fileno()), str(os.getpid()), self._reward.to_json(), self._cores]
            process = subprocess.Popen(
                [sys.executable, "-m", "services.reward_worker", *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                # Its own group, so that what a reward has started can be ended with it.
                start_new_session=True,
            )
        here.setblocking(False)
        worker = _Worker(process, here, time.monotonic() + START_TIMEOUT_S)
        self._workers.append(worker)
        self._selector.register(here, selectors.EVENT_READ, worker)


def _end(worker: _Worker) -> int:
    """Kills the worker and all it started, waits for its exit, and returns the code it exited with."""
    worker.channel.close()
    # It has not been waited for yet, so its group still is its own. If it is ending by itself, its exit code stays what it was.
    os.killpg(worker.process.pid, signal.SIGKILL)
    return worker.process.wait()
