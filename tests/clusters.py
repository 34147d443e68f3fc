"""A cluster of three nodes on this machine for tests, and runs on it: nodes come and go while a run is watched through its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import pytest

from bus.entry import Entry
from bus.errors import LogMissing
from bus.events import Event, RunEnded
from bus.recording import Recording
from bus.redis_log import RedisLog
from services.launcher.local import dying_with_us
from tests.serving import COMMAND, PATIENCE_S, QUIET, children

ROOT = Path(__file__).resolve().parents[1]
HEAD = "a"
"""The node that cannot be removed: the cluster's own books are there."""
NODES = (HEAD, "b", "c")


class ThreeNodes:
    """Nodes a (the head), b and c with 2 CPUs each. Node x has 100 of the custom resource x, so that a service can be bound to it."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        """Name of a node that is there -> its id in Ray."""
        self.address = ""
        self._unlike: set[str] = set()
        """Nodes that were started with arguments of their own."""
        self._removed: set[str] = set()
        """Ids of nodes that the cluster may still believe in."""
        self._replacements = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ThreeNodes:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster_process"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            first = self._ask(name=HEAD, arguments={})
            self.address = first["address"]
            self.ids[HEAD] = first["node_id"]
            self.restore()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def add(self, name: str, **arguments: object) -> str:
        """Starts a node (`num_cpus`, `num_gpus`, `resources`, … as `Cluster.add_node` has them); returns its id."""
        self._unlike |= {name} if arguments else set()
        self.ids[name] = self._ask(do="add", name=name, arguments=arguments)["node_id"]
        return self.ids[name]

    def remove(self, name: str) -> str:
        """Kills a node at once; returns the id that it had. The cluster notices after about two seconds."""
        self._ask(do="remove", name=name)
        return self._gone(name)

    def kill_raylet(self, name: str) -> str:
        """Kills only the process that manages a node; the node counts as removed."""
        self._ask(do="kill_raylet", name=name)
        self._ask(do="remove", name=name)
        return self._gone(name)

    def _gone(self, name: str) -> str:
        self._removed.add(self.ids[name])
        return self.ids.pop(name)

    def freeze(self, name: str) -> str:
        """Stops all processes of a node, as if it hung; returns its id. `remove` it afterwards."""
        return self._ask(do="freeze", name=name)["node_id"]

    def replace(self, name: str) -> str:
        """Kills a node at once; another one takes its place, with the same custom resource. Returns its name."""
        self.remove(name)
        self._replacements += 1
        other = f"{name[0]}{self._replacements}"
        self.add(other, resources={name[0]: 100.0})
        return other

    def dead(self) -> set[str]:
        """Ids of the nodes that the cluster has declared dead."""
        return {node for node, state in self._ask(do="states").items() if state == "dead"}

    def where(self, run: str) -> dict[str, str]:
        """Service of a run -> the node that it is on now."""
        prefix = f"swingshift:{run}:"
        named = {name.removeprefix(prefix): node for name, node in self._ask(do="where").items() if name.startswith(prefix)}
        return {name.rpartition(":")[0]: node for name, node in named.items()}

    def restore(self) -> None:
        """The three nodes and no others, as the cluster knows it, too: nothing is put on one that it still believes in."""
        extra = [name for name in self.ids if name not in NODES or name in self._unlike]
        for name in extra:
            self.remove(name)
        self._unlike.clear()
        for name in NODES:
            if name not in self.ids:
                self.add(name)
        give_up = time.monotonic() + PATIENCE_S
        while not self._removed <= self.dead():
            assert time.monotonic() < give_up, f"the cluster still believes in {self._removed - self.dead()}"
            time.sleep(0.1)
        self._removed.clear()

    def _ask(self, **request: object) -> dict[str, str]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the cluster's process ended at {request}, with {process.wait(PATIENCE_S)}"
        answer: dict[str, str] = json.loads(line)
        return answer

    def _end(self) -> None:
        process = self._process
        assert process is not None
        # The end of its input is what it ends at.
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[ThreeNodes]:
    """The session's cluster, as the tests before left it: take `three_nodes`."""
    pytest.importorskip("ray", reason="Ray is not installed")
    with ThreeNodes() as cluster:
        yield cluster


@pytest.fixture
def three_nodes(ray_cluster: ThreeNodes) -> ThreeNodes:
    """A cluster of the three nodes a, b and c."""
    ray_cluster.restore()
    return ray_cluster


# --- runs ------------------------------------------------------------------------------------------------------------------------


class RayRun:
    """One `swingshift run … --on ray` (or what goes on with it) as a process, watched through its log; ends with the block."""

    def __init__(self, command: Sequence[str], url: str, run: str, folder: Path, said: Path) -> None:
        self.url, self.run, self.folder = url, run, folder
        self.entries: list[Entry] = []
        """What has been read of its log."""
        self._command = command
        self._said = said
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RayRun:
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                dying_with_us([*COMMAND, *self._command]),
                cwd=ROOT,
                env=QUIET,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process = self.process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The driver: the process of the command."""
        assert self._process is not None
        return self._process

    @property
    def said(self) -> str:
        """What the command printed, on one line."""
        return " ".join(self._said.read_text().split())

    def kill(self) -> None:
        """SIGKILL for the driver and what it started itself (its server); services are the cluster's to end."""
        with suppress(ProcessLookupError):
            for pid in [self.process.pid, *children(self.process.pid)]:
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def follow(self, patience_s: float = PATIENCE_S) -> Iterator[Entry]:
        """Every entry as it comes, from where the last reading ended, until RunEnded. Fails when nothing comes, or the command ends."""
        with self._log(patience_s) as log:
            give_up = time.monotonic() + patience_s
            while True:
                entries = log.read(self.entries[-1].position if self.entries else 0, 64, block_ms=500)
                for entry in entries:
                    self.entries.append(entry)
                    yield entry
                    if isinstance(entry.event, RunEnded):
                        return
                give_up = time.monotonic() + patience_s if entries else give_up
                assert time.monotonic() < give_up, f"nothing came for {patience_s:g} s: {self.account()}"
                assert entries or self.process.poll() is None, f"the driver ended: {self.account()}"

    def wait_for(self, wanted: type[Event] | Callable[[Entry], bool], patience_s: float = PATIENCE_S) -> Entry:
        """The next entry of a kind, or that is as wanted."""
        for entry in self.follow(patience_s):
            if isinstance(entry.event, wanted) if isinstance(wanted, type) else wanted(entry):
                return entry
        raise AssertionError(f"the run ended before {wanted}: {self.account()}")

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Exit status of the command, which ends by itself."""
        return self.process.wait(patience_s)

    def recorded(self) -> list[Entry]:
        """The whole run as its folder has it."""
        with Recording.open(self.folder / self.run) as recording:
            return list(recording.entries())

    def account(self) -> str:
        """What is known when something went wrong."""
        last = "\n".join(f"{entry.position} {entry.source}/{entry.epoch} {entry.event!r}" for entry in self.entries[-15:])
        logs = sorted((self.folder / self.run / "logs").glob("*.log"))
        tails = "\n".join(f"--- {path.name}\n{path.read_text()[-800:]}" for path in logs)
        return f"{self.said[-3000:]}\n{last}\n{tails}"

    @contextmanager
    def _log(self, patience_s: float) -> Iterator[RedisLog]:
        give_up = time.monotonic() + patience_s
        while True:
            try:
                log = RedisLog.open(self.url, self.run)
                break
            except LogMissing:
                assert time.monotonic() < give_up, f"the run made no log: {self.account()}"
                assert self.process.poll() is None, f"the driver ended without a log: {self.account()}"
                time.sleep(0.1)
        try:
            yield log
        finally:
            log.close()


def run_on(cluster: ThreeNodes, config: Path, url: str, run: str, folder: Path, *settings: str) -> RayRun:
    """`swingshift run CONFIG --on ray`; its folder is folder/run."""
    sets = [part for setting in (f"folder={folder}", *settings) for part in ("--set", setting)]
    command = ["run", str(config), "--on", "ray", "--address", cluster.address, "--redis", url, "--run", run, *sets]
    return RayRun(command, url, run, folder, folder / f"{run}.txt")


def resume_on(cluster: ThreeNodes, url: str, run: str, folder: Path) -> RayRun:
    """`swingshift run --resume RUN --on ray`."""
    command = ["run", "--resume", str(folder / run), "--on", "ray", "--address", cluster.address, "--redis", url]
    return RayRun(command, url, run, folder, folder / f"{run}.txt")
