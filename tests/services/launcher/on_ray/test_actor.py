"""What an actor does on its node, without Ray: it starts a service as its child, and what is left of one is found and killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import bus
from services.launcher.local import living_members, started_at
from services.launcher.on_ray.actor import forget_ray, service_environment, start_here, working_folder
from services.launcher.on_ray.handle import Orders
from services.launcher.on_ray.orders import Begun, Left, Order, Remains, Where
from services.launcher.on_ray.remains import TOKEN_VARIABLE, living_remains, sweep
from services.launcher.protocol import RunPlace, ServiceSpec

TOKEN = uuid4().hex
"""Nobody else's on this machine."""
WHERE = Where(node="0123456789ab", host="host17", address="10.0.0.17", gpus=())


def order(folder: Path, command: list[str], **environment: str) -> Order:
    orders = Orders(RunPlace("redis://host", "r1", folder), folder, lambda _: command)
    return orders.order(ServiceSpec("trainer", token=TOKEN), WHERE, (), environment)


def remains(text: str) -> list[int]:
    return list(Left.model_validate_json(text).pids)


@pytest.fixture
def left_behind() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when it is killed, in a group of its own, of an incarnation whose token is TOKEN."""
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN}
    with subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True) as process:
        # While it becomes `sleep` it has none for a moment, and Popen waits only for that to begin.
        while not Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.001)
        yield process
        process.kill()


def begun(process: subprocess.Popen[bytes]) -> Begun:
    since = started_at(process.pid)
    assert since is not None
    return Begun(pid=process.pid, since=since)


def test_a_service_works_where_its_driver_does_and_finds_the_code_that_its_actor_has(tmp_path: Path) -> None:
    handle = start_here(order(tmp_path, ["/bin/sh", "-c", f"pwd; echo ${TOKEN_VARIABLE} $SET; echo $PYTHONPATH"], SET="here"))
    while handle.poll() is None:
        time.sleep(0.01)
    where, words, path = (tmp_path / "logs" / "trainer.log").read_text().splitlines()
    assert (where, words) == (str(tmp_path), f"{TOKEN} here")
    assert path.split(":")[0] == str(Path(bus.__file__).parents[1])


def test_a_node_without_the_drivers_folder_has_relative_paths_meant_from_its_copy_of_the_checkout(tmp_path: Path) -> None:
    assert working_folder(tmp_path) == tmp_path
    assert working_folder(tmp_path / "nowhere") == Path.cwd()


def test_what_ray_sets_for_itself_is_no_business_of_a_service_and_what_the_user_sets_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "RAY_JOB_ID"):
        monkeypatch.setenv(name, "1")
    forget_ray({"RAY_JOB_ID": "1"})
    assert "OMP_NUM_THREADS" not in os.environ
    assert os.environ["RAY_JOB_ID"] == "1"


def test_a_search_path_of_ones_own_stays_behind_the_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(bus.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", f"/mine:{root}")
    assert service_environment(order(tmp_path, []))["PYTHONPATH"] == f"{root}:/mine"


def test_what_is_left_is_found_by_its_group_and_by_its_token(left_behind: subprocess.Popen[bytes]) -> None:
    assert living_remains(Remains(token=TOKEN, begun=None)) == [left_behind.pid]
    assert living_remains(Remains(token="another", begun=begun(left_behind))) == [left_behind.pid]
    assert living_remains(Remains(token="another", begun=None)) == []


def test_a_process_that_has_got_the_number_of_one_that_ended_is_left_alone(left_behind: subprocess.Popen[bytes]) -> None:
    earlier = begun(left_behind).model_copy(update={"since": 1})
    assert living_remains(Remains(token="another", begun=earlier)) == []


def test_a_sweep_kills_what_is_left_and_says_that_nobody_is(left_behind: subprocess.Popen[bytes]) -> None:
    wanted = Remains(token=TOKEN, begun=begun(left_behind)).model_dump_json()
    assert remains(sweep(wanted)) == []
    assert living_members(left_behind.pid) == []
    assert remains(sweep(wanted)) == []
