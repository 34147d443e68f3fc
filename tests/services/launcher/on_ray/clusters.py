"""Made-up clusters, and runs that are to be placed on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.events import RunPlanned
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine
from services.launcher.on_ray.placement import Node, Placement, place
from services.plan import plan_run


def node(number: int, gpus: float = 8, cpus: float = 64, *, used: Mapping[str, float] | None = None, **lacks: str) -> Node:
    """`lacks`: service -> what it misses here, with `_` for the `:` of its name."""
    total = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    free = {name: amount - (used or {}).get(name, 0.0) for name, amount in total.items()}
    return Node(f"{number:02x}" * 28, f"node{number}", total, free, {name.replace("_", ":"): words for name, words in lacks.items()})


def nodes(number: int, gpus: float = 8, cpus: float = 64) -> list[Node]:
    return [node(index, gpus, cpus) for index in range(number)]


def cluster_of(there: Sequence[Node]) -> Machine:
    return Machine((), int(sum(each.total.get("GPU", 0.0) for each in there)), nodes=len(there))


def config(**sections: object) -> RunConfig:
    return make_config({"async_training": {"total_steps": 10}} | sections, "test")


def on_gpus(standalone: int, hybrid: int, ranks: int = 1, parts: int = 1, **sections: object) -> RunConfig:
    """With vLLM, each replica on `parts` GPUs."""
    settings: dict[str, object] = {
        "actor": {"device": "cuda", "ranks": ranks},
        "rollout": {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": parts} if parts > 1 else {}},
        "replicas": {"standalone": standalone, "hybrid": hybrid},
    }
    return config(**settings | sections)


def planned(config: RunConfig, there: Sequence[Node]) -> RunPlanned:
    return plan_run(config, "r1", cluster_of(there))


def placed(config: RunConfig, there: Sequence[Node]) -> Placement:
    return place(planned(config, there), config, there)
