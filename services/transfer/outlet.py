"""The trainer's side: keeps the process that hands out weights, and tells it of each publication. Costs the trainer's threads no time.

    announce ──▶ keeper (a thread) ──standard input──▶ services.transfer.process        ended by a transfer: started again
                      └── the socket is this one's, so the address stays

Whatever happens to that process, publishing goes on: replicas take the retained copy.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import bus.die_with_parent
from bus.errors import ConfigError
from bus.events import DirectWeights
from services.transfer.choice import Giver
from services.weights.store import WeightNotice

logger = logging.getLogger(__name__)

MOST_STARTS = 8
"""Then something is wrong with the machine, and nothing is handed out directly any more."""
END_S = 5.0
WAIT_S = 0.5
MOST_SAID = 4096
COMMAND = (sys.executable, "-P", "-m", "services.transfer.process")


class Outlet:
    """`giver`: this end. `host`: the address of this machine that replicas reach it by. Raises ConfigError if it is none of its.

    `far_host`: where it moves once some replica is on another machine. `command`: another process than the one that hands out weights.
    """

    def __init__(
        self, giver: Giver, host: str, token: bytes, limit_s: float, command: Sequence[str] | None = None, far_host: str = ""
    ) -> None:
        self._giver = giver
        self._command = command or COMMAND
        self._listener = _listen(host)
        self._address = _address(host, self._listener)
        self._far_host = far_host
        self._settings = {"token": token.hex(), "devices": giver.devices, "transports": giver.transports, "limit_s": limit_s}
        self._newest: WeightNotice | None = None
        self._struck: dict[str, str] = {}
        """Replica -> why it is not served any more."""
        self._given_up = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._keep, name="outlet", daemon=True)

    @property
    def address(self) -> str:
        """host:port"""
        return self._address

    def start(self) -> None:
        """Starts the process."""
        self._thread.start()

    def announce(self, notice: WeightNotice, *, beyond: bool = False) -> DirectWeights | None:
        """Has these weights handed out from now on; what their notice says of it. None: nothing is handed out any more.

        `beyond`: some replica is on another machine.
        """
        with self._changed:
            if beyond and self._far_host and not self._given_up:
                self._move()
            self._newest = notice
            self._changed.notify_all()
            if self._given_up:
                return None
        return DirectWeights(
            address=self._address, transports=self._giver.transports, machine=self._giver.machine, devices=self._giver.devices
        )

    def close(self) -> None:
        """Ends the process; transfers that are under way break off."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2 * END_S)
        self._listener.close()

    def _keep(self) -> None:
        # The process ends with the thread that started it, so all of them are started here.
        number = 0
        while number < MOST_STARTS:
            listener = self._listener
            code = self._run_once(listener)
            if self._closing:
                return
            if listener is not self._listener:
                listener.close()
                continue
            number += 1
            logger.warning("the process that hands out weights has ended: code=%s start=%d of=%d", code, number, MOST_STARTS)
            if self._changed_within(min(10.0, WAIT_S * number)):
                return
        with self._changed:
            self._given_up = True
        logger.error("weights are not handed out directly any more: replicas take the retained copy; starts=%d", MOST_STARTS)

    def _move(self) -> None:
        """Listens where other machines come to, from here on; replicas hear of it with the weights."""
        host, self._far_host = self._far_host, ""
        try:
            listener = _listen(host)
        except ConfigError as error:
            logger.warning("replicas on other machines take the retained copy: %s", error)
            return
        self._listener, self._address = listener, _address(host, listener)
        logger.info("weights are handed out to other machines, too: address=%s", self._address)

    def _changed_within(self, seconds: float) -> bool:
        """Whether it is to end, waiting at most so long for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)

    def _run_once(self, listener: socket.socket) -> int:
        """One process from its start to its end, or until it is to listen elsewhere; its exit code."""
        parent = [sys.executable, "-I", "-S", bus.die_with_parent.__file__, str(os.getpid()), str(int(signal.SIGKILL))]
        process = subprocess.Popen(
            [*parent, *self._command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            pass_fds=[listener.fileno()], cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        assert process.stdin is not None
        with process.stdin:
            try:
                self._feed(process, listener)
            except BrokenPipeError:
                logger.debug("the process that hands out weights reads no more")
        code = _ended(process)
        assert process.stdout is not None
        with process.stdout:
            self._struck |= _last_words(process.stdout.read(MOST_SAID))
        return code

    def _feed(self, process: subprocess.Popen[bytes], listener: socket.socket) -> None:
        """Tells it of publications until one of both ends."""
        self._tell(process, self._settings | {"descriptor": listener.fileno(), "struck": self._struck})
        told: WeightNotice | None = None
        while process.poll() is None:
            told, before = self._next(told), told
            if self._closing or listener is not self._listener:
                return
            if told is not None and told is not before:
                self._tell(process, {"version": told.version, "revision": told.revision, "uri": told.uri, "digest": told.digest})

    def _next(self, told: WeightNotice | None) -> WeightNotice | None:
        """The newest publication, waiting a little for one that is not the last that was told."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not told, WAIT_S)
            return self._newest

    def _tell(self, process: subprocess.Popen[bytes], said: object) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(said).encode() + b"\n")


def _address(host: str, listener: socket.socket) -> str:
    return f"{host}:{listener.getsockname()[1]}"


def able(transports: Sequence[str]) -> tuple[str, ...]:
    """Those of them that this Python can send by; the others are named in the log."""
    there = tuple(transport for transport in transports if transport != "nccl" or importlib.util.find_spec("vllm") is not None)
    for transport in transports:
        if transport not in there:
            logger.warning("weights cannot be sent by %s: vLLM is not installed for the trainer", transport)
    return there


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _last_words(said: bytes) -> dict[str, str]:
    """Replica -> what a transfer to it did, if that was the end of the process."""
    try:
        told = json.loads(said or b"{}")
    except ValueError:
        return {}
    return {str(replica): str(reason) for replica, reason in told.items()} if isinstance(told, dict) else {}


def _listen(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), backlog=64)
    except OSError as error:
        raise ConfigError(
            f"weights cannot be handed out at {host} ({error.strerror or error}): set weights.direct_host to an address of the trainer's "
            "machine, or weights.transport to shm or file"
        ) from error
