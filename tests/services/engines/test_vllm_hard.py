"""What destroys a vLLM, each on one of its own: `make test-vllm-hard`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bus.errors import EngineError
from bus.events import ReplicaAwake
from services.engines.config import EngineConfig, VllmConfig
from services.engines.vllm import VllmEngine
from services.engines.vllm_processes import alive as still_there
from services.engines.vllm_processes import descendants
from services.engines.vllm_server import VllmServer
from services.exit_codes import KILLED
from services.weights.store import WeightsFile, WeightStore
from tests.services.director import Director
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, Workshop, ask, collect, own_logprobs, random_model, wait_for_tokens, weights_of
from tests.services.engines.vllm_factories import quietly_imported, tiny_server, vllm_model

pytestmark = NEEDS_VLLM


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


REPLICA = """
import sys
from pathlib import Path
from services.context import make_context, read_plan
from services.engines.config import EngineConfig
from services.engines.protocol import Sampling
from services.engines.vllm import VllmEngine
from services.launcher.protocol import RunPlace, ServiceSpec
from services.replica.shell import Replica
from tests.services.engines.vllm_factories import vllm_model
if __name__ == "__main__":
    url, run, name, folder = *sys.argv[1:4], Path(sys.argv[4])
    vllm_model(32).save_pretrained(folder / "model")
    engine = VllmEngine(EngineConfig(kind="vllm", max_model_len=4096, dtype="float32"), folder / "model")
    context = make_context(RunPlace(url, run, folder), ServiceSpec("replica", name), read_plan(url, run, folder), "test")
    Replica(context, engine, Sampling(), Sampling(), slots=8).run()
"""


def test_c09_a_replica_that_hangs_in_its_engine_is_killed_with_all_its_processes(redis_url: str, run: str, tmp_path: Path) -> None:
    director, weights = Director(redis_url, run, tmp_path), weights_of(random_model(vllm_model(VOCAB), 1))
    del weights["lm_head.weight"]
    name, notice = director.hybrid, WeightStore(run, "file", tmp_path / "published").publish(weights, 1, 0, 1)
    script = tmp_path / "replica.py"
    script.write_text(REPLICA)
    with subprocess.Popen([sys.executable, str(script), redis_url, run, name, str(tmp_path)]) as replica:
        director.wait_until_there(name, 300)
        director.outcome(director.wake(name, 1, notice), ReplicaAwake)
        director.ask(name, 4, LONG)
        director.finished(director.ask(name, 1, 5))
        family = descendants([replica.pid])
        cores = [process.pid for process in family if "VLLM" in Path(f"/proc/{process.pid}/comm").read_text()]
        assert len(cores) == 1
        os.kill(cores[0], signal.SIGSTOP)
        asleep = director.sleep(name)
        director.kill(name)
        assert replica.wait(20) == KILLED
    deadline = time.monotonic() + 10
    while any(map(still_there, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(still_there, family))
    director.read()
    assert asleep not in director.outcomes
    director.close()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """For what may destroy it, and is not meant to."""
    with quietly_imported():
        server = tiny_server(tmp_path_factory.mktemp("hard"))
        server.start(300)
    yield server
    server.close()


STEPS: dict[str, Callable[[VllmEngine], object]] = {
    "wake": VllmEngine.wake,
    "load_weights": lambda engine: engine.load_weights(weights_of(random_model(vllm_model(VOCAB), 1)), 1),
    "open": VllmEngine.open,
    "pause": VllmEngine.pause,
    "sleep": VllmEngine.sleep,
}
"""One swing, in its order."""


def hang(server: VllmServer, tmp_path: Path, stopped: str) -> None:
    """Stops the core right before one step of a swing, and looks at what the engine makes of it."""
    vllm_model(VOCAB).save_pretrained(tmp_path)
    limits = VllmConfig(switch_timeout_s=1, update_timeout_s=1)
    engine = VllmEngine(EngineConfig(kind="vllm", max_model_len=4096, pause_timeout_s=1, vllm=limits), tmp_path, server=server)
    engine.start()
    for name, step in STEPS.items():
        if name == stopped:
            break
        step(engine)
    os.kill(server.pids[0], signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match="has not ended after"):
            STEPS[stopped](engine)
        for later in STEPS.values():
            with pytest.raises(EngineError, match="has failed"):
                later(engine)
    finally:
        os.kill(server.pids[0], signal.SIGCONT)
    engine.close()


@pytest.mark.parametrize("stopped", ["wake", "open", "pause", "sleep"])
def test_c09_a_core_that_hangs_in_any_step_of_a_swing_is_a_failed_engine(own_server: VllmServer, tmp_path: Path, stopped: str) -> None:
    hang(own_server, tmp_path, stopped)


def test_c19_an_update_that_fails_half_way_leaves_the_version_and_is_the_end_of_the_engine(own_server: VllmServer, tmp_path: Path) -> None:
    workshop = Workshop("vllm", tmp_path, vllm_server=own_server)
    engine = workshop.open()
    whole = workshop.weights(2)
    del whole["lm_head.weight"]
    # In the file, one tensor in the middle has another shape than its reader was told.
    path = tmp_path / "published.safetensors"
    save_file(whole | {"model.layers.1.mlp.down_proj.weight": torch.zeros(3, 3)}, path)
    engine.pause()
    with pytest.raises(EngineError, match="load_weights failed in vLLM"):
        engine.load_weights(WeightsFile(whole, path, "a digest", path.stat().st_size), 2)
    assert engine.stats().version == 1
    for call in (engine.open, engine.sleep, lambda: engine.load_weights(workshop.weights(2), 2)):
        with pytest.raises(EngineError, match="has failed"):
            call()
    workshop.close()


def test_c19_a_core_that_hangs_while_it_loads_weights_is_a_failed_engine(own_server: VllmServer, tmp_path: Path) -> None:
    """An update session that nobody ends: no engine can load weights through this vLLM after it."""
    hang(own_server, tmp_path, "load_weights")


def test_a_worker_that_is_killed_while_asleep_is_noticed_before_the_next_wake(tmp_path: Path) -> None:
    with quietly_imported():
        server = tiny_server(tmp_path, distributed_executor_backend="mp")
        workshop = Workshop("vllm", tmp_path, vllm_server=server)
        engine = workshop.build()
    assert len(server.pids) == 2
    os.kill(server.pids[1], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"process EngineCore.* has ended with exit code"):
        engine.poll(30)
    with pytest.raises(EngineError, match="has failed"):
        engine.wake()
    workshop.close()


def test_c40_a_process_that_is_killed_is_an_error_for_all_in_flight_also_when_nothing_is(tmp_path: Path) -> None:
    with quietly_imported():
        server = tiny_server(tmp_path)
        workshop = Workshop("vllm", tmp_path, vllm_server=server)
        engine = workshop.open()
    engine.submit(ask("r", LONG))
    wait_for_tokens(engine, 5)
    os.kill(server.pids[0], signal.SIGKILL)
    assert collect(engine, 1)["r"].outcome == "error"
    with pytest.raises(EngineError, match="has failed"):
        engine.poll(5)
    workshop.close()


def test_c09_an_engine_that_hangs_on_pause_is_never_taken_as_paused(tmp_path: Path) -> None:
    vllm_model(VOCAB).save_pretrained(tmp_path)
    with quietly_imported():
        server = tiny_server(tmp_path)
        engine = VllmEngine(EngineConfig(kind="vllm", max_model_len=4096, pause_timeout_s=2, vllm=VllmConfig()), tmp_path, server=server)
        engine.start()
    workshop = Workshop("vllm", tmp_path)
    engine.wake()
    engine.load_weights(workshop.weights(1), 1)
    engine.open()
    engine.submit(ask("r", LONG))
    wait_for_tokens(engine, 5)
    os.kill(server.pids[0], signal.SIGSTOP)
    with pytest.raises(EngineError, match="has not ended after"):
        engine.pause()
    assert collect(engine, 1)["r"].outcome == "error"
    with pytest.raises(EngineError, match="has failed"):
        engine.sleep()
    pids = server.pids
    engine.close()
    assert not any(map(alive, pids))


def test_tied_weights_follow_an_update_also_where_kernels_keep_a_form_of_their_own(tmp_path: Path) -> None:
    with quietly_imported():
        workshop = Workshop("vllm", tmp_path, vllm_server=tiny_server(tmp_path, dtype="bfloat16"))
        engine = workshop.open()
    engine.pause()
    engine.load_weights(workshop.weights(2), 2)
    engine.open()
    engine.submit(ask("r", 100))
    output = collect(engine, 1)["r"]
    far, near = (
        sum(abs(one - other) for one, other in zip(output.logprobs, own_logprobs(output, version), strict=True)) for version in (1, 2)
    )
    assert near < far / 5
    workshop.close()
