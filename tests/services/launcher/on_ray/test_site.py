"""A run's site on a real cluster of three nodes: what it may use, who may go where, what is reserved, and that nothing is left of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.cli.screen import TerminalScreen
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine
from services.launcher.here import LocalSite
from services.launcher.on_ray import group
from services.launcher.on_ray.site import RaySite
from services.launcher.protocol import Launcher, RunPlace, Say
from services.launcher.run import run
from services.plan import plan_run
from tests.clusters import ThreeNodes
from tests.serving import swingshift, write_config

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def connected(ray_cluster: ThreeNodes) -> Iterator[RaySite]:
    """Of all tests here, for every new connection has processes of its own on each node."""
    with RaySite(ray_cluster.address, {}, lambda text: None) as site:
        yield site


@pytest.fixture
def site(connected: RaySite, three_nodes: ThreeNodes) -> RaySite:
    return connected


def scripted(folder: Path, **sections: object) -> RunConfig:
    settings: dict[str, object] = {
        "model": {"path": "scripted"},
        "rollout": {"engine": "scripted", "n": 2},
        "async_training": {"total_steps": 1},
        "folder": str(folder),
    }
    return make_config(settings | sections, "test")


def planned(site: RaySite, config: RunConfig) -> RunPlanned:
    return plan_run(config, "r", site.machine(config))


@contextmanager
def launching(site: RaySite, url: str, config: RunConfig, plan: RunPlanned | None = None) -> Iterator[Launcher]:
    folder = config.folder / "r"
    folder.mkdir(exist_ok=True)
    with site.launching(RunPlace(url, "r", folder), plan or planned(site, config), config, lambda text: None) as launcher:
        yield launcher


def bundles() -> dict[str, list[str]]:
    """Placement groups of runs -> the nodes of their bundles."""
    there = ray.util.placement_group_table().values()
    return {found["name"]: list(found["bundles_to_node_id"].values()) for found in there if found["state"] == "CREATED"}


def lacking(need: str, *nodes: str) -> Callable[[str], str]:
    """What nodes say, if some of them lack something. It is sent to them as it is, so it names what it needs itself."""

    def look(text: str) -> str:
        import ray

        from services.launcher.on_ray.look import look_here
        from services.launcher.on_ray.survey import Asked

        found = look_here(Asked.model_validate_json(text))
        wrong = {need: f"no {need} there"} if ray.get_runtime_context().get_node_id() in nodes else {}
        return found.model_copy(update={"problems": wrong}).model_dump_json()

    return look


def test_a_plan_may_use_what_all_nodes_have_and_everybody_may_be_anywhere(site: RaySite, tmp_path: Path) -> None:
    config = scripted(tmp_path)
    machine = site.machine(config)
    assert (machine.nodes, machine.gpus, machine.cores) == (3, 0, ())
    plan = planned(site, config)
    assert plan.devices == {}
    site.check(plan, config, lambda text: None)
    assert list(site.preview(plan, config)) == [
        ("trainer + h0, s0", "1 CPU on one node, each"),
        *((service, "any node") for service in ("rollouter", "controller", "policy", "archiver")),
    ]  # fmt: skip
    assert not (tmp_path / "r").exists()


def test_nothing_is_reserved_on_nodes_that_lack_something_for_who_sits_there(
    three_nodes: ThreeNodes, site: RaySite, tmp_path: Path, redis_url: str
) -> None:
    """By a connection of its own; and whoever heard SIGTERM before hears it still, which Ray would answer itself."""

    def hear(number: int, frame: object) -> None: ...

    site.__exit__(None, None, None)
    before = signal.signal(signal.SIGTERM, hear)
    a, b, c = (three_nodes.ids[name] for name in "abc")
    config = scripted(tmp_path)
    try:
        with (
            RaySite(three_nodes.address, {}, lambda text: None, look=lacking("folder", a, c)) as other,
            launching(other, redis_url, config),
        ):
            # The trainer needs the folder; the replica needs it for its weights.
            assert bundles() == {"swingshift:r": [b, b]}
            assert [path.name for path in (tmp_path / "r").rglob("*")] == ["logs", "ray.log"]
            assert signal.getsignal(signal.SIGTERM) is hear
        assert signal.getsignal(signal.SIGTERM) is hear
        assert not ray.is_initialized()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cluster_that_is_too_small_is_refused_by_resource_before_anything_is_made(site: RaySite, tmp_path: Path) -> None:
    config = scripted(tmp_path, replicas={"standalone": 6, "hybrid": 1})
    with pytest.raises(ConfigError, match=r"the cluster is too small: the run needs 7 CPU \(trainer 1, .*; the cluster has 6; add nodes"):
        site.check(planned(site, config), config, lambda text: None)
    bound = scripted(tmp_path, cluster={"resources": {"replica:s0": {"tpu": 1}}})
    with pytest.raises(ConfigError, match=r"the cluster is too small: the run needs 1 tpu \(replica:s0 1\); the cluster has 0"):
        site.check(planned(site, bound), bound, lambda text: None)
    assert not (tmp_path / "r").exists()


def test_room_that_others_have_is_waited_for_and_then_the_run_is_refused(site: RaySite, tmp_path: Path, redis_url: str) -> None:
    config = scripted(tmp_path, cluster={"wait_s": 0.5})
    site.machine(config)
    others = ray.util.placement_group([{"CPU": 2}, {"CPU": 2}, {"CPU": 1}])
    assert others.wait(30)
    words = (
        r"there is no room on the cluster, also after \d+ s \(cluster.wait_s\): the run needs 2 CPU .* has 6, 5 of them in use by others"
    )
    with pytest.raises(ConfigError, match=words), launching(site, redis_url, config):
        pass
    assert "swingshift:r" not in bundles()
    ray.util.remove_placement_group(others)
    with launching(site, redis_url, scripted(tmp_path)):
        assert len(bundles()["swingshift:r"]) == 2
    assert "swingshift:r" not in bundles()


def test_a_run_that_another_driver_has_on_the_cluster_is_not_begun_a_second_time(
    site: RaySite, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "LEAVING_S", 0.3)
    config = scripted(tmp_path)
    with launching(site, redis_url, config):
        words = r"run r is on this cluster already \(swingshift:r\): another driver runs it; wait until it has ended, or stop it"
        with pytest.raises(ConfigError, match=words), launching(site, redis_url, config):
            pass
        assert "swingshift:r" in bundles()


def test_a_dry_run_shows_who_would_be_where_and_whether_there_is_room(three_nodes: ThreeNodes, tmp_path: Path, redis_url: str) -> None:
    """And asks the nodes for folder and server as a run would; nothing of that is left."""
    config = str(write_config(tmp_path))
    on_ray = ("--dry-run", "--on", "ray", "--address", three_nodes.address, "--redis", redis_url)
    text = swingshift("run", config, *on_ray, "--set", "cluster.cpus.replica=3", status=2)
    assert "on the cluster needs trainer + h0 1 CPU on one node s0 3 CPU on one node rollouter any node" in text
    assert "the cluster is too small: replica:s0 needs 3 CPU on one node, and none that it may be on has that" in text
    assert [str(path) for path in tmp_path.iterdir()] == [config]


def test_gpus_that_others_have_by_rays_books_are_counted(three_nodes: ThreeNodes, site: RaySite, tmp_path: Path, redis_url: str) -> None:
    three_nodes.add("g", num_gpus=2)
    config = scripted(tmp_path, actor={"device": "cuda"}, cluster={"wait_s": 0.5})
    plan = planned(site, config)
    assert plan.devices["replica:s0"] == "cuda:1"
    others = ray.util.placement_group([{"GPU": 1}])
    assert others.wait(30)
    words = r"the run needs 2 GPU \(trainer 1, replica:s0 1\); the cluster has 2, 1 of them in use by others"
    with pytest.raises(ConfigError, match=words), launching(site, redis_url, config, plan):
        pass
    ray.util.remove_placement_group(others)
    give_up = time.monotonic() + 30
    while ray.available_resources().get("GPU", 0) < 2 and time.monotonic() < give_up:
        time.sleep(0.1)
    with launching(site, redis_url, config, plan):
        assert bundles()["swingshift:r"] == [three_nodes.ids["g"]] * 2


class Full(LocalSite):
    """A site without room."""

    @contextmanager
    def launching(self, place: RunPlace, plan: RunPlanned, config: RunConfig, say: Say) -> Iterator[Launcher]:
        assert place.folder.is_dir()
        raise ConfigError("there is no room")
        yield


class Asked(LocalSite):
    """A site that nobody is to ask anything."""

    def machine(self, config: RunConfig) -> Machine:
        raise AssertionError("it was asked")


def test_an_id_that_is_taken_is_refused_before_anybody_is_asked_or_anything_is_made(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "r").mkdir()
    with pytest.raises(ConfigError, match=f"there is a run 'r' in {tmp_path} already: choose another id with --run, or remove"):
        run(scripted(tmp_path), "r", redis_url, TerminalScreen(), lambda entries: {}, Asked())
    text = swingshift("run", str(write_config(tmp_path)), "--set", f"folder={tmp_path}", "--run", "r", "--dry-run", status=2)
    assert "there is a run 'r'" in text


def test_a_new_run_that_finds_no_place_leaves_no_folder_and_no_log(tmp_path: Path, redis_url: str) -> None:
    config = scripted(tmp_path, devices="unpinned")
    for _ in range(2):
        with pytest.raises(ConfigError, match="there is no room"):
            run(config, "r", redis_url, TerminalScreen(), lambda entries: {}, Full())
    assert not (tmp_path / "r").exists()
