"""A server of its own on a TCP port, as a cluster has it, and what it uses: processor, memory, commands."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bus.connection import Connection, Script
from bus.errors import LogUnavailable

START_S = 30.0


@dataclass(frozen=True, slots=True)
class Used:
    """Up to now: processor seconds of the server and of what it forked, and calls of and microseconds in each command."""

    at: float
    cpu_s: float
    children_s: float
    commands: dict[str, tuple[int, float]]
    sent: int
    received: int


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
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        children = float(cpu["used_cpu_user_children"]) + float(cpu["used_cpu_sys_children"])
        sent, received = int(stats["total_net_output_bytes"]), int(stats["total_net_input_bytes"])
        return Used(time.monotonic(), own, children, commands, sent, received)

    def goes_first(self) -> bool:
        """Gives it a processor whenever it wants one, as on a machine of its own. Whether that may be."""
        try:
            os.sched_setscheduler(self.pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(2))
        except PermissionError:
            return False
        return True


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
