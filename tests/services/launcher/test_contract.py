"""What every launcher promises, over processes of this machine and actors of a cluster; over threads what these can do."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Literal

import pytest

from services.exit_codes import FAILED
from services.launcher.in_process import ThreadLauncher
from services.launcher.local import LocalLauncher
from services.launcher.protocol import Handle, Launcher, RunPlace, ServiceSpec
from tests.clusters import ThreeNodes
from tests.services.launcher.on_ray.connected import anywhere, connected

PATIENCE_S = 60.0
TRAINER, REPLICA = ServiceSpec("trainer"), ServiceSpec("replica", "h0")
Kind = Literal["local", "ray"]


class Run:
    """Services that are shell scripts, in one launcher."""

    def __init__(self, kind: Kind, folder: Path, stack: ExitStack) -> None:
        self.place = RunPlace("redis://:secret@host", f"contract-{folder.name}"[-40:], folder)
        self._scripts: dict[str, str] = {}
        self.launcher = stack.enter_context(self._ray()) if kind == "ray" else self._local()

    def _local(self) -> Launcher:
        return LocalLauncher(self.place, self._command)

    def _ray(self) -> AbstractContextManager[Launcher]:
        from services.launcher.on_ray.launcher import RayLauncher

        return RayLauncher(self.place, anywhere("trainer", "replica", "policy"), None, self._command)

    def _command(self, spec: ServiceSpec) -> Sequence[str]:
        return ["/bin/sh", "-c", self._scripts[spec.log_name]]

    def start(self, script: str, spec: ServiceSpec = TRAINER) -> Handle:
        self._scripts[spec.log_name] = script
        return self.launcher.spawn(spec)

    def said(self, spec: ServiceSpec = TRAINER) -> list[str]:
        path = self.place.log_file(spec.log_name)
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def says(self, spec: ServiceSpec = TRAINER) -> str:
        """Its first line, once it is there."""
        eventually(lambda: bool(self.said(spec)))
        return self.said(spec)[0]


@pytest.fixture(params=["local", "ray"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Every launcher that can run anything."""
    kind: Kind = request.param
    with ExitStack() as stack:
        if kind == "ray":
            request.getfixturevalue("driver")
        yield Run(kind, tmp_path, stack)


@pytest.fixture(scope="module")
def driver(ray_cluster: ThreeNodes) -> Iterator[None]:
    ray_cluster.restore()
    with connected(ray_cluster.address):
        yield


def eventually(happens: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def end_of(handle: Handle) -> int:
    eventually(lambda: handle.poll() is not None)
    code = handle.poll()
    assert code is not None
    return code


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_end_has_its_exit_code_and_the_last_words_which_are_in_the_log_file(run: Run) -> None:
    handle = run.start("echo first; echo 'cannot go on' >&2; exit 7")
    assert end_of(handle) == 7
    assert handle.how_it_ended().startswith("exit code 7")
    assert handle.how_it_ended().endswith(": cannot go on")
    assert run.said() == ["first", "cannot go on"]
    assert handle.kill(), "nothing is done, and nothing breaks, once it has ended"
    handle.terminate()
    assert handle.poll() == 7


def test_one_that_is_asked_to_end_ends_in_order(run: Run) -> None:
    handle = run.start("trap 'echo in order; exit 0' TERM; echo here; while :; do sleep 0.05; done")
    assert run.says() == "here"
    assert handle.poll() is None
    assert handle.waits_for() == ""
    handle.terminate()
    assert end_of(handle) == 0
    assert run.said()[-1] == "in order"


def test_a_kill_takes_what_it_started_and_nobody_needs_to_obey(run: Run) -> None:
    handle = run.start("trap '' TERM; sh -c 'trap \"\" TERM; echo $$; sleep 600 & wait' & sleep 600")
    grandchild = int(run.says())
    assert is_alive(grandchild)
    assert handle.kill()
    assert end_of(handle) == -signal.SIGKILL
    assert not is_alive(grandchild)
    assert handle.how_it_ended().startswith("signal 9")


def test_an_exit_counts_only_when_everybody_whom_it_started_is_gone(run: Run) -> None:
    handle = run.start("sh -c 'trap \"\" TERM HUP; echo $$; sleep 600' & sleep 0.3; exit 3")
    child = int(run.says())
    assert end_of(handle) == 3
    assert not is_alive(child)


def test_the_servers_url_is_in_its_environment_and_on_no_command_line(run: Run) -> None:
    handle = run.start('echo "$REDIS_URL"; sleep 600')
    assert run.says() == "redis://:secret@host"
    lines = [path.read_bytes() for folder in Path("/proc").glob("[0-9]*") if (path := folder / "cmdline").exists()]
    assert not any(b":secret@" in line for line in lines)
    handle.kill()
    end_of(handle)


def test_two_of_one_source_run_beside_each_other(run: Run) -> None:
    candidate = ServiceSpec("policy", request=5, candidate=True)
    first, second = run.start("exit 4", ServiceSpec("policy")), run.start("exit 5", candidate)
    shadow = run.start("exit 6", ServiceSpec("policy", "watcher", request=9))
    assert [end_of(handle) for handle in (first, second, shadow)] == [4, 5, 6]


def test_a_thread_cannot_be_killed_and_says_how_it_ended(tmp_path: Path, redis_url: str) -> None:
    handle = ThreadLauncher(RunPlace(redis_url, "nobody-planned-it", tmp_path)).spawn(TRAINER)
    assert not handle.kill()
    handle.terminate()
    assert end_of(handle) == FAILED
    assert handle.how_it_ended() == "exit code 1"
    assert handle.waits_for() == ""
