"""What a user may get wrong about a cluster: one message with the values and what to do. What no node has: test_survey.py, test_room.py."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.cli.run import Where
from services.config import ClusterConfig, CpusConfig, RunConfig
from services.config_file import make_config
from services.devices import known_services
from services.engines.gpu_memory import GIB, GpuMemory
from services.launcher.on_ray import cluster
from services.launcher.on_ray.gpus import Seen, complaint, look, parsed, read
from services.launcher.on_ray.group import refuse_too_small
from services.launcher.on_ray.site import RaySite
from tests.services.launcher.on_ray.clusters import config, node, placed
from tests.serving import swingshift, write_config


def said(text: str) -> None:
    """Nobody listens."""


def refusal(address: str | None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        cluster.connect(address, environment, {}, said)
    return str(caught.value)


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# --- Ray, and its cluster --------------------------------------------------------------------------------------------------------


def test_a_run_on_ray_without_ray_says_how_to_install_it(tmp_path: Path) -> None:
    """The installation is hidden from the process; nothing of the run is made."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Hider:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'ray': raise ModuleNotFoundError(name)\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'ray' else find_spec(name, package)\n"
        "sys.meta_path.insert(0, Hider())\n"
    )
    text = swingshift("run", str(write_config(tmp_path)), "--on", "ray", status=2, environment={"PYTHONPATH": str(hidden)})
    assert (
        f"Ray is not installed here: pip install 'ray=={cluster.KNOWN_RAY}' (on every node the same version), or leave out --on ray" in text
    )
    assert not (tmp_path / "runs").exists()


def test_the_version_that_is_named_is_the_one_that_is_locked() -> None:
    lock = Path(__file__).parents[4] / "requirements-ray.lock"
    assert f"ray=={cluster.KNOWN_RAY}" in lock.read_text().split()


@pytest.mark.parametrize(("version", "fits"), [("2.49.1", False), ("2.50.0", True), ("2.60.0", True), ("3.0.0rc1", True), ("1.99", False)])
def test_a_ray_that_is_too_old_is_told_from_one_that_is_not(version: str, fits: bool) -> None:
    assert cluster.is_new_enough(version) is fits


def test_a_cluster_that_is_not_there_is_named_with_its_address_and_how_to_start_it(nobody: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    port = nobody.rpartition(":")[2]
    words = refusal(nobody)
    assert f"no Ray cluster answers at {nobody} (--address): [Errno 111] Connection refused; " in words
    assert f"is its head running (`ray start --head --port={port}`)" in words
    assert f"no Ray cluster answers at {nobody} (RAY_ADDRESS)" in refusal(None, RAY_ADDRESS=nobody)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://head:10001", "--address is ray://head:10001, a Ray client's address"),
        ("http://head:8265", "name the cluster's head as HOST:PORT, such as 10.0.0.1:6379; http:// is for `ray job submit`"),
        ("head:port", "--address is head:port: name the cluster's head as HOST:PORT"),
    ],
)
def test_an_address_of_another_kind_is_refused_with_the_right_one(address: str, words: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    assert words in refusal(address)


def test_the_option_goes_before_the_environment() -> None:
    assert cluster.which("a:1", {"RAY_ADDRESS": "b:2"}) == ("a:1", "--address")
    assert cluster.which(None, {"RAY_ADDRESS": "b:2"}) == ("b:2", "RAY_ADDRESS")
    assert cluster.which(None, {}) == (None, "RAY_ADDRESS")
    assert cluster.which("auto", {}) == ("auto", "--address")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Where("mars"), "--on is 'mars': it can be local, processes of this machine, or ray, a Ray cluster"),
        (Where("ray", in_process=True), "--on ray puts services on a cluster and --in-process into this process: leave out one of them"),
        (Where(address="head:6379"), "--address head:6379 is that of a Ray cluster: add --on ray, or leave it out"),
    ],
)
def test_options_that_contradict_each_other_are_refused(where: Where, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        where.site(said)


def test_a_version_that_is_not_that_of_the_cluster_is_said_with_both() -> None:
    words = cluster.unfit(
        "10.0.0.1:6379",
        RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.11.7\n"
            "This process on node 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
        ),
    )
    assert words.startswith(
        "the Ray cluster at 10.0.0.1:6379 and this process have not the same versions: Version mismatch: The cluster was"
    )
    assert "Ray: 2.59.0 Python: 3.11.7" in words
    assert f"use the same Python and Ray ({cluster.INSTALL}) on every node and here" in words


def test_a_cluster_that_wants_a_token_says_where_to_put_it() -> None:
    reason = RuntimeError("Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    assert cluster.unfit("10.0.0.1:6379", reason) == (
        "the Ray cluster at 10.0.0.1:6379 lets nobody in without its token: set RAY_AUTH_MODE=token, and have the token of its head "
        "(`ray get-auth-token` there) in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    )


def test_a_cluster_that_is_too_small_without_the_nodes_that_lack_something_names_these_with_the_reason() -> None:
    """Such as all but the driver's, with an embedded server."""
    away = (
        "the run's server is not in reach: no answer from unix:///r.sock; name one that every node reaches with --redis redis://HOST:PORT"
    )
    settings = config(replicas={"standalone": 1, "hybrid": 0})
    there = [node(0, gpus=0, cpus=1), replace(node(1, gpus=0, cpus=8), lacks=dict.fromkeys(known_services(settings), away))]
    found = placed(settings.model_copy(update={"cluster": ClusterConfig(cpus=CpusConfig(rank=2))}), there)
    with pytest.raises(ConfigError, match=re.escape(f"not everybody can be on node1: {away}; add nodes, or lower")):
        refuse_too_small(found, there)


# --- GPUs ------------------------------------------------------------------------------------------------------------------------


def on_gpus(**shares: float) -> RunConfig:
    return make_config({"async_training": {"total_steps": 1}, "actor": {"device": "cuda"}, "rollout": {"engine": "vllm", **shares}}, "test")


def gpu(used_gib: float, number: str = "3") -> GpuMemory:
    return GpuMemory(number, 80 * GIB, int(used_gib * GIB), None)


def test_a_gpu_whose_memory_others_hold_is_refused_with_node_and_amounts() -> None:
    words = complaint(("trainer", "replica:h0"), (gpu(0.5, "2"), gpu(30)), "node-7", on_gpus())
    assert words == (
        "GPU 3 of node node-7 is in use: others hold 30.0 of its 80.0 GiB, and 1 of it is for trainer and replica:h0; "
        "end what runs there (nvidia-smi shows it), or take the GPU out of Ray's books (CUDA_VISIBLE_DEVICES at `ray start`)"
    )


def test_a_standalone_replica_leaves_to_others_what_it_does_not_take() -> None:
    settings = on_gpus(standalone_gpu_memory_utilization=0.6)
    assert complaint(("replica:s0",), (gpu(31),), "n", settings) == ""
    assert "others hold 33.0 of its 80.0 GiB, and 0.6 of it is for replica:s0" in complaint(("replica:s0",), (gpu(33),), "n", settings)


def test_a_gpu_with_next_to_nothing_on_it_is_free() -> None:
    assert complaint(("trainer",), (gpu(0.9),), "n", on_gpus()) == ""
    assert complaint(("trainer",), (), "n", on_gpus()) == ""


def test_what_nvidias_tool_says_is_read_in_mebibytes() -> None:
    assert parsed("0, 81559, 4\n1, 81559, 40000\n2, [N/A], [N/A]\n") == [
        GpuMemory("0", 81559 << 20, 4 << 20, None), GpuMemory("1", 81559 << 20, 40000 << 20, None),
    ]  # fmt: skip


def test_without_gpus_in_sight_nothing_is_said_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node whose GPUs are made up, too: there is no driver to ask."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert read(look("")).gpus == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH", "/nowhere")
    assert read(look("")) == Seen(socket.gethostname(), ())


def test_a_site_on_ray_is_on_several_machines() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    assert RaySite("head:6379", {}, said).multi_machine
