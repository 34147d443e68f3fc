"""What destroys a vLLM, each on one of its own: `make test-vllm-hard`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bus.errors import EngineError
from services.engines.config import EngineConfig, VllmConfig
from services.engines.vllm import VllmEngine
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, Workshop, ask, collect, own_logprobs, wait_for_tokens
from tests.services.engines.vllm_factories import quietly_imported, tiny_server, vllm_model

pytestmark = NEEDS_VLLM

PARENT = """
import sys, time
from pathlib import Path
from tests.services.engines.vllm_factories import tiny_server
if __name__ == "__main__":
    server = tiny_server(Path(sys.argv[1]))
    server.start(300)
    print(*server.pids, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_its_processes_die_with_the_replica_however_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert pids
        assert all(map(alive, pids))
        parent.kill()
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


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
