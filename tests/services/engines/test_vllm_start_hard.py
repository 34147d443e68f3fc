"""Starts of vLLM that fail, hang or are cut short, and what an end leaves: `make test-vllm-hard`."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bus.errors import EngineError
from services.engines import vllm_folder
from services.engines.config import EngineConfig, VllmConfig
from services.engines.vllm import VllmEngine
from services.engines.vllm_plugin import MARK
from services.engines.vllm_processes import descendants, shared_memory
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import VOCAB
from tests.services.engines.vllm_factories import quietly_imported, tiny_server, vllm_model

pytestmark = NEEDS_VLLM

PARENT = """
import sys
from pathlib import Path
from tests.services.engines.vllm_factories import tiny_server
if __name__ == "__main__":
    tiny_server(Path(sys.argv[1])).start(300)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """Where temporary files are, of a name that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def nothing_is_left_to_whoever_collects_garbage() -> Iterator[None]:
    """What a test left open is a warning, and so an error, of that test."""
    yield
    gc.collect()


def started_under(root: Path) -> list[int]:
    """Processes of the vLLMs whose folder is in there."""
    mark = f"{MARK}={root}/{vllm_folder.PREFIX}".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_for(what: str, root: Path, *, any_: bool) -> None:
    deadline = time.monotonic() + 60
    while bool(started_under(root)) != any_:
        assert time.monotonic() < deadline, f"waited for {what}: {started_under(root)}"
        time.sleep(0.05)


@pytest.mark.parametrize("later_s", [0.0, 2.0, 5.0, None])
def test_no_process_outlives_a_replica_that_is_killed_at_any_moment_of_its_start(root: Path, later_s: float | None) -> None:
    script = root / "parent.py"
    script.write_text(PARENT)
    command, environment = [sys.executable, str(script), str(root / "model")], os.environ | {"TMPDIR": str(root)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        if later_s is None:
            assert parent.stdout.readline() == "ready\n"
        wait_for("the engine core", root, any_=True)
        time.sleep(later_s or 0)
        parent.kill()
    wait_for("an end of all", root, any_=False)


def test_closing_leaves_nothing_behind_and_the_environment_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(root))
    environment = dict(os.environ)
    with quietly_imported():
        server = tiny_server(root / "model")
        with closing(server):
            server.start(300)
            segments = shared_memory(descendants(server.pids))
            assert started_under(root) == sorted(server.pids)
            assert dict(os.environ) == environment
        server.close()
    assert started_under(root) == []
    assert [path.name for path in root.iterdir()] == ["model"]
    assert not [path for path in segments if path.exists()]
    assert not [thread for thread in threading.enumerate() if thread.name == "vllm"]
    assert not multiprocessing.active_children()


def test_a_start_that_hangs_ends_in_time_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(root))
    with quietly_imported():
        server = tiny_server(root / "model")

        def stop_the_core() -> None:
            wait_for("the engine core", root, any_=True)
            for pid in started_under(root):
                os.kill(pid, signal.SIGSTOP)

        stopper = threading.Thread(target=stop_the_core)
        stopper.start()
        with pytest.raises(EngineError, match="start has not ended after"):
            server.start(8)
    stopper.join()
    assert started_under(root) == []
    assert [path.name for path in root.iterdir()] == ["model"]


def test_a_start_that_is_cut_short_before_it_has_any_process_leaves_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.engines.vllm_server.END_S", 5.0)
    with quietly_imported(), pytest.raises(EngineError, match="start has not ended after"):
        tiny_server(root).start(0.01)
    assert not multiprocessing.active_children()
    assert not [thread for thread in threading.enumerate() if thread.name == "vllm"]


def test_what_goes_wrong_in_the_engine_core_is_part_of_the_error(root: Path) -> None:
    """vLLM's own message to us is only that the core has failed."""
    with quietly_imported(), pytest.raises(EngineError, match=r"EngineCore failed to start.*No available memory"):
        tiny_server(root, kv_cache_memory_bytes=1000).start(120)


def test_a_model_that_vllm_does_not_know_is_named(root: Path) -> None:
    vllm_model(VOCAB).save_pretrained(root)
    settings = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(settings | {"architectures": ["NobodyForCausalLM"]}))
    engine = VllmEngine(EngineConfig(kind="vllm", max_model_len=256, dtype="float32", vllm=VllmConfig(start_timeout_s=120)), root)
    with quietly_imported(), pytest.raises(EngineError, match="NobodyForCausalLM"):
        engine.start()
    engine.close()


def test_a_model_folder_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    config = EngineConfig(kind="vllm", max_model_len=256, dtype="float32")
    engine = VllmEngine(config, tmp_path / "nowhere")
    with pytest.raises(EngineError, match=r"nowhere cannot be served by vLLM"):
        engine.start()
    engine.close()
