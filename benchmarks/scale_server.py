"""A server of its own on a TCP port, as a cluster has it, and what it uses: processor, memory, commands."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bus.alive import RENEW
from bus.connection import Connection, Script
from bus.errors import LogUnavailable
from bus.redis_blobs import FORGET
from bus.redis_log import APPEND
from bus.trimming import REPORT, TRIM
from bus.wire import Reply

START_S = 30.0
STALL_MS = 2
"""Of what takes the server longer in one go, during which nobody else is answered, it keeps a record."""
SLOW_CALLS = 1_000
"""Kept at most."""
SCRIPTS = {
    script.digest: name for name, script in (("append", APPEND), ("renew", RENEW), ("trim", TRIM), ("report", REPORT), ("forget", FORGET))
}


@dataclass(frozen=True, slots=True)
class Used:
    """Up to now: processor seconds of the server and of what it forked, and calls of and microseconds in each command."""

    at: float
    cpu_s: float
    children_s: float
    commands: dict[str, tuple[int, float]]
    sent: int
    received: int
    waited_s: float
    """For a processor, while it had something to do."""


class Server:
    """A running one."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._connection = Connection(url)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def close(self) -> None:
        self._connection.close()

    def knows(self, *scripts: Script) -> None:
        """Gives it scripts, for clients that call them without asking whether they are there."""
        for script in scripts:
            self._connection.call("SCRIPT", "LOAD", script.text)

    def info(self, section: str) -> dict[str, str]:
        reply = cast(bytes, self._connection.call("INFO", section)).decode()
        return dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)

    def used(self) -> Used:
        stats, cpu = self.info("stats"), self.info("cpu")
        commands = {}
        for name, line in self.info("commandstats").items():
            numbers = dict(part.split("=") for part in line.split(","))
            commands[name.removeprefix("cmdstat_")] = (int(numbers["calls"]), float(numbers["usec"]))
        threads = [file.read_text().split() for file in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
        own, waited = (sum(int(numbers[index]) for numbers in threads) / 1e9 for index in (0, 1))
        children = float(cpu["used_cpu_user_children"]) + float(cpu["used_cpu_sys_children"])
        sent, received = int(stats["total_net_output_bytes"]), int(stats["total_net_input_bytes"])
        return Used(time.monotonic(), own, children, commands, sent, received, waited)

    def watches_stalls(self) -> None:
        """Records from now on what keeps everybody waiting."""
        for setting in (
            ("latency-monitor-threshold", STALL_MS),
            ("slowlog-log-slower-than", STALL_MS * 1_000),
            ("slowlog-max-len", SLOW_CALLS),
        ):
            self._connection.call("CONFIG", "SET", *setting)
        self._connection.call("LATENCY", "RESET")
        self._connection.call("SLOWLOG", "RESET")

    def stalls(self) -> dict[str, list[float]]:
        """Since then: cause -> in how many seconds (of a command: how often), and the longest in ms.

        Causes are the server's own words: `fork`, `aof-write`, `command`, …; the commands among them are there by name, too.
        """
        found: dict[str, list[float]] = {}
        for event in cast("list[list[Reply]]", self._connection.call("LATENCY", "LATEST")):
            history = cast("list[list[int]]", self._connection.call("LATENCY", "HISTORY", cast(bytes, event[0])))
            found[cast(bytes, event[0]).decode()] = [len(history), float(max(ms for _, ms in history))]
        for call in cast("list[list[Reply]]", self._connection.call("SLOWLOG", "GET", SLOW_CALLS)):
            name = _name(cast("list[bytes]", call[3]))
            count, longest = found.get(name, [0, 0.0])
            found[name] = [count + 1, max(longest, round(cast(int, call[2]) / 1e3, 1))]
        return found

    def goes_first(self) -> bool:
        """Gives it a processor whenever it wants one, as on a machine of its own. Whether that may be."""
        try:
            os.sched_setscheduler(self.pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(2))
        except PermissionError:
            return False
        return True


def _name(arguments: Sequence[bytes]) -> str:
    """Of a command, of ours that is a script the script's."""
    command = arguments[0].decode().upper()
    return SCRIPTS.get(arguments[1].decode(), command) if command == "EVALSHA" else command


@contextmanager
def running(binary: Path, folder: Path) -> Iterator[Server]:
    """With the options of the embedded server, but on a port; nothing of a former one is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True)
    options = ["--appendonly", "yes", "--appendfsync", "no", "--save", "", "--maxmemory-policy", "noeviction"]
    options += ["--dir", str(folder), "--logfile", "server.log"]
    process = subprocess.Popen([str(binary), "--bind", "127.0.0.1", "--port", str(port), *options])
    try:
        with closing(Server(f"redis://127.0.0.1:{port}", process.pid)) as server:
            wait_until_ready(server, process)
            yield server
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            server.info("server")
            return
        except LogUnavailable:
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"the server does not start (exit code {process.poll()})") from None
            time.sleep(0.02)
