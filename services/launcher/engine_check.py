"""Whether a run's replicas find the engine that they are to use, when they are started from here: told before anything is."""

from __future__ import annotations

from bus.errors import ConfigError
from bus.events import RunPlanned
from bus.sources import REPLICA_PREFIX
from services.config import RunConfig
from services.engines.vllm_installed import KNOWN_VERSION, usable_vllm
from services.launcher.child import ChildFailed, run_child
from services.launcher.protocol import Say

PROBE = "services.engines.vllm_probe"


def check_engine(plan: RunPlanned, config: RunConfig, say: Say) -> None:
    """Raises ConfigError if the engine is vLLM and the one that is here cannot be it."""
    if config.rollout.engine != "vllm":
        return
    found = usable_vllm(plan.devices.get(f"{REPLICA_PREFIX}{name}", "") for name in (*plan.standalone, *plan.hybrid))
    if not found.is_known:
        say(f"vLLM {found} was not tried, {KNOWN_VERSION} was: asking it for what replicas need")
        if lack := probed():
            raise ConfigError(f"rollout.engine is vllm, and {lack}")


def probed() -> str:
    """What the vLLM that is here lacks, in words; empty: nothing. Takes seconds."""
    try:
        run_child(PROBE, [], lambda word, rest: None)
    except ChildFailed as failed:
        return failed.tail or f"vLLM cannot be asked what it can do (exit code {failed.code})"
    return ""
