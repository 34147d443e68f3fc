"""Actors of a real cluster that are lost, have no room, share GPUs, or whose driver is killed: nobody is left behind, and nobody waits."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from services.launcher.local import Command, living_members
from services.launcher.on_ray.launcher import RayLauncher
from services.launcher.on_ray.newcomers import Survey
from services.launcher.on_ray.placement import Bundle, Placement, Seat
from services.launcher.protocol import RunPlace, ServiceSpec
from tests.clusters import ROOT, ThreeNodes
from tests.services.launcher.on_ray.connected import anywhere, connected
from tests.services.launcher.test_contract import end_of, eventually

FAMILY = "trap '' TERM HUP; sh -c 'trap \"\" TERM HUP; echo $$ $PPID; sleep 600 & wait' & sleep 600"
"""Says who it has started, and who it is."""
ALONE = "echo $$ $$; exec sleep 600"


@pytest.fixture(scope="module")
def _connection(ray_cluster: ThreeNodes) -> Iterator[None]:
    with connected(ray_cluster.address):
        yield


@pytest.fixture
def driver(_connection: None, three_nodes: ThreeNodes) -> ThreeNodes:
    """The cluster that this process is a driver on."""
    return three_nodes


def launcher_of(folder: Path, placement: Placement, script: str, group: object | None = None, survey: Survey | None = None) -> RayLauncher:
    command: Command = lambda spec: ["/bin/sh", "-c", script]  # noqa: E731
    return RayLauncher(RunPlace("", f"r-{folder.name}"[-40:], folder), placement, group, command, survey)


def on(node: str) -> Placement:
    """A trainer that needs a node's custom resource."""
    return anywhere(seats={"trainer": Seat(None, resources={node: 1.0})})


def family_of(folder: Path, service: str = "trainer") -> list[int]:
    """Processes that it has said it consists of."""
    log = folder / "logs" / f"{service}.log"
    eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    return [int(pid) for pid in log.read_text().split()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def nobody_of(family: list[int]) -> bool:
    return not any(living_members(pid) for pid in family)


def test_one_without_room_is_spawned_at_once_says_what_it_waits_for_and_can_be_ended(driver: ThreeNodes, tmp_path: Path) -> None:
    placement = anywhere(seats={"trainer": Seat(None, num_cpus=50, resources={"b": 1})})
    with launcher_of(tmp_path, placement, "exit 0") as launcher:
        handle = launcher.spawn(ServiceSpec("trainer"))
        assert handle.waits_for() == "a node with 50 CPU and 1 b"
        time.sleep(0.5)
        assert handle.poll() is None
        assert handle.waits_for() == "a node with 50 CPU and 1 b"
        handle.kill()
        assert end_of(handle) == -signal.SIGKILL
        assert handle.how_it_ended() == "signal 9, before it was started; it waited for a node with 50 CPU and 1 b"


def test_when_an_actors_process_is_killed_nobody_of_its_service_is_left_before_it_counts(driver: ThreeNodes, tmp_path: Path) -> None:
    with launcher_of(tmp_path, on("b"), FAMILY) as launcher:
        handle = launcher.spawn(ServiceSpec("trainer"))
        family = family_of(tmp_path)
        os.kill(parent_of(family[1]), signal.SIGKILL)
        assert end_of(handle) == -signal.SIGKILL
        assert nobody_of(family)
        assert handle.how_it_ended().startswith("signal 9 on ")
        assert "for its actor has died" in handle.how_it_ended()


def test_a_service_of_a_dead_node_has_ended_and_its_successor_is_elsewhere(driver: ThreeNodes, tmp_path: Path) -> None:
    with launcher_of(tmp_path, on("b"), ALONE) as launcher:
        handle = launcher.spawn(ServiceSpec("trainer"))
        family = family_of(tmp_path)
        lost = driver.remove("b")
        assert end_of(handle) == -signal.SIGKILL
        assert handle.how_it_ended().endswith(f"({lost[:8]}) is gone")
        successor = launcher.spawn(ServiceSpec("trainer"))
        driver.add("b")
        eventually(lambda: successor.waits_for() == "")
        assert successor.poll() is None
    eventually(lambda: nobody_of(family))


def test_the_end_of_a_launcher_leaves_nobody_behind(driver: ThreeNodes, tmp_path: Path) -> None:
    with launcher_of(tmp_path, anywhere("trainer"), FAMILY) as launcher:
        handle = launcher.spawn(ServiceSpec("trainer"))
        family = family_of(tmp_path)
        assert handle.poll() is None
    assert nobody_of(family)
    assert handle.poll() == -signal.SIGKILL


def test_a_node_with_gpus_comes_so_who_waited_starts_and_who_shares_several_is_told_which(driver: ThreeNodes, tmp_path: Path) -> None:
    import ray

    bundle = Bundle({"GPU": 2.0, "CPU": 1.0}, (), ("trainer", "trainer", "replica:h0"), held=True)
    seats = {"trainer": Seat(0, 0.0, held=(1,)), "replica:h0": Seat(0, 0.0, held=(0, 1)), "replica:s0": Seat(None, num_gpus=0.5)}
    group = ray.util.placement_group([dict(bundle.resources)], name="test-held")
    placement = anywhere(seats=seats, bundles=(bundle,))
    with launcher_of(tmp_path, placement, 'echo "gpus $CUDA_VISIBLE_DEVICES"', group) as launcher:
        handles = [launcher.spawn(ServiceSpec(*name.split(":"))) for name in seats]
        assert [handle.waits_for() for handle in handles[1:]] == ["a node with 2 GPU and 1 CPU", "a node with 0.5 GPU"]
        driver.add("g", num_gpus=3)
        assert [end_of(handle) for handle in handles] == [0, 0, 0]
    ray.util.remove_placement_group(group)
    trainer, hybrid, standalone = (handle.how_it_ended().rpartition("gpus ")[2] for handle in handles)
    shared = hybrid.split(",")
    assert trainer == shared[1]
    assert sorted([*shared, standalone]) == ["0", "1", "2"]
    assert f"({driver.ids['g'][:8]})" in handles[2].how_it_ended()


def test_a_node_that_joins_is_asked_first_and_what_was_put_on_one_that_lacks_something_goes_elsewhere(
    driver: ThreeNodes, tmp_path: Path
) -> None:
    """Outside of what is reserved, and in it."""
    import ray

    said: list[str] = []

    def look(text: str) -> str:
        import ray

        return f"{text} {ray.get_runtime_context().get_node_id()}"

    def judge(name: str, answer: str) -> dict[str, str]:
        assert answer.startswith("what is there? ")
        return {} if answer.endswith(driver.ids.get("y", "none")) else {"policy": "no folder there", "replica:s0": "no model there"}

    known: dict[str, dict[str, str]] = {node: {} for node in driver.ids.values()}
    survey = Survey(known, lambda: nullcontext("what is there?"), look, judge, ("policy", "replica:s0"), 60, said.append)
    bundle = Bundle({"new": 1.0, "CPU": 1.0}, (), ("replica:s0",))
    seats = {"policy": Seat(None, resources={"new": 1.0}), "replica:s0": Seat(0, resources={"new": 1.0})}
    group = ray.util.placement_group([dict(bundle.resources)], name="test-newcomers")
    placement = anywhere(seats=seats, bundles=(bundle,))
    with launcher_of(tmp_path, placement, "exit 0", group, survey) as launcher:
        handles = [launcher.spawn(ServiceSpec(*name.split(":"))) for name in seats]
        bad = driver.add("x", resources={"new": 2})
        eventually(lambda: all("not one of the 1 that lack something for it" in handle.waits_for() for handle in handles))
        driver.add("y", resources={"new": 2})
        assert [end_of(handle) for handle in handles] == [0, 0]
    ray.util.remove_placement_group(group)
    assert all(f"({driver.ids['y'][:8]})" in handle.how_it_ended() for handle in handles)
    whom = sorted((words.partition(" is not for ")[2].partition(", another one is looked for: ")) for words in said)
    assert [(who, why[:15].strip()) for who, _, why in whom] == [("policy", "no folder there"), ("replica:s0", "no model there")]
    assert all(f"({bad[:8]})" in words for words in said)


def test_services_end_with_a_driver_that_is_killed(three_nodes: ThreeNodes, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.services.launcher.on_ray.connected import anywhere, connected;"
        "from tests.services.launcher.on_ray.test_launcher import ALONE, launcher_of; from services.launcher.protocol import ServiceSpec;"
        "connection = connected(sys.argv[1]); connection.__enter__();"
        "launcher = launcher_of(Path(sys.argv[2]), anywhere('trainer'), ALONE).__enter__();"
        "launcher.spawn(ServiceSpec('trainer')); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, three_nodes.address, str(tmp_path)], cwd=ROOT) as process:
        family = family_of(tmp_path)
        process.kill()
    eventually(lambda: nobody_of(family))


def test_nobody_waits_for_ray() -> None:
    """`ray.get` and `ray.wait` block the thread, or the event loop, that calls them; futures do not."""
    found = [
        f"{path}: {ast.unparse(node)}"
        for folder in ("services", "replay", "bus", "policies")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if waits_for_ray(node)
    ]
    assert found == []


def waits_for_ray(node: ast.AST) -> bool:
    """A mention of `ray.get` or `ray.wait`, or an import of one."""
    match node:
        case ast.Attribute(value=ast.Name(id="ray"), attr="get" | "wait"):
            return True
        case ast.ImportFrom(module="ray", names=names):
            return any(alias.name in ("get", "wait") for alias in names)
        case _:
            return False


@pytest.mark.parametrize(
    ("text", "waits"), [("ray.get(ref)", True), ("from ray import wait", True), ("import ray.util; ray.get_actor('a')", False)]
)
def test_the_look_for_waits_finds_them(text: str, waits: bool) -> None:
    assert any(map(waits_for_ray, ast.walk(ast.parse(text)))) is waits
