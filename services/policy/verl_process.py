"""A handle on the process that runs one policy written for verl: one question at a time, each within its time.

It ends with the thread that started it (Linux), with its handle, and when it is late.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import cast

import msgpack

from bus.errors import PolicyFailed
from services.policy.verl_child import FAILED

logger = logging.getLogger(__name__)

START_S = 60.0
"""How long the file may take to be run: it may import much."""
CALL_S = 2.0
"""How long one call of a method of it may take."""
METHODS = {
    "load": "running the file",
    "make": "__init__",
    "begin_step": "should_deactivate, deactivate_wait_samples",
    "activate": "should_activate_after_step",
    "rebalance": "request_rebalance",
    "update": "update_after_step",
    "peek": "update_after_step, should_deactivate, deactivate_wait_samples",
}
"""Question -> what of the user's it calls."""
_RECEIVE_BYTES = 1 << 16
_ROOT = Path(__file__).resolve().parents[2]


class VerlProcess:
    """Runs the policy `class_name` of a file's text. Raises PolicyFailed where the file, or a method of it, raises, is late or ends."""

    def __init__(self, name: str, file: str, text: str, class_name: str, call_s: float = CALL_S) -> None:
        self.name = name
        self._file = file
        self._call_s = call_s
        here, there = socket.socketpair()
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with there:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "services.policy.verl_child", str(there.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                # What the file iterates over must not depend on the process it runs in.
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        self.pid = process.pid
        self._channel = here
        self._replies = msgpack.Unpacker(use_list=False, max_buffer_size=0)
        self.close = weakref.finalize(self, _end, process, here)
        """Ends the process; it is also called when nobody holds this handle any more."""
        found = cast("dict[str, tuple[bool, object]]", self.ask("load", file, text, class_name))
        self.arguments = found
        """Of the class's constructor: name -> (it has a default, the default if that is a plain value)."""

    def ask(self, question: str, *arguments: object) -> object:
        """The answer of the process to one question (see `verl_child.Runner`)."""
        limit_s = START_S if question == "load" else self._call_s
        what = METHODS.get(question, question)
        try:
            reply = self._reply((question, arguments), time.monotonic() + limit_s)
        except TimeoutError:
            self.close()
            raise PolicyFailed(f"{self._file}: {what} took more than {limit_s:g} s, so its process was ended: make it faster") from None
        except OSError as error:
            code = self.close()
            raise PolicyFailed(f"{self._file}: its process ended in {what} (exit code {code}): {error}") from error
        status, *content, lines, too_many = reply
        self._tell(cast("tuple[str, ...]", lines), cast(int, too_many))
        if status == FAILED:
            where, trace = content
            raise PolicyFailed(f"{self._file}{where}{trace}")
        return content[0]

    def _reply(self, message: tuple[object, ...], until: float) -> tuple[object, ...]:
        self._channel.settimeout(max(0.001, until - time.monotonic()))
        self._channel.sendall(msgpack.packb(message))
        while True:
            for reply in self._replies:
                return cast("tuple[object, ...]", reply)
            self._channel.settimeout(max(0.001, until - time.monotonic()))
            data = self._channel.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionError("it said no more")
            self._replies.feed(data)

    def _tell(self, lines: tuple[str, ...], too_many: int) -> None:
        for line in lines:
            logger.info("policy %s prints: %s", self.name, line)
        if too_many:
            logger.info("policy %s prints: %d more lines, which are left out", self.name, too_many)


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> int:
    """Kills the process and all it started, waits for its exit, and returns the code it exited with."""
    channel.close()
    # It has not been waited for yet, so its group still is its own. If it is ending by itself, its exit code stays what it was.
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
