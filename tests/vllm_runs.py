"""Whole runs with vLLM for the tests: a tiny model that it has kernels for, one standalone and one hybrid replica."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.engines.vllm_processes import Spawned, alive, descendants, end
from services.launcher.folders import remove_shm_folder
from tests.test_end_to_end import command

CONFIG = """
model:
  path: builtin
  shape: {hidden_size: 64, intermediate_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 1}
  warm_start: {steps: 3}
data: {task: sorting, seed: 3}
rollout: {engine: vllm, n: 4, max_running_requests: 16, engine_kwargs: {kv_cache_memory_bytes: 67108864}}
actor: {lr: 1.0e-3}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 4, total_steps: 12}
policy: {name: default, params: {deactivate_ratio: 0.6}}
"""
START_S = 240.0
"""How long both engines may take on a busy machine."""


@contextmanager
def running(folder: Path, run: str, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """`swingshift run`, told to end when the block is left, and killed with all its processes if it is still there then."""
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command(folder, CONFIG, run, *settings), stdout=output, stderr=output)
        try:
            yield process
        finally:
            left = descendants([process.pid])
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            end(left, 30.0)
            remove_shm_folder(run)


def output_of(folder: Path) -> str:
    """What it has said so far."""
    return (folder / "output.txt").read_text(errors="replace")


def cores_of(processes: list[Spawned]) -> list[Spawned]:
    """Those of them that are vLLM's engine cores."""
    return [process for process in processes if alive(process) and name_of(process).startswith("VLLM::")]


def name_of(process: Spawned) -> str:
    """What the process calls itself; empty if it is gone."""
    try:
        return (Path("/proc") / str(process.pid) / "cmdline").read_text().strip("\0 ")
    except OSError:
        return ""
