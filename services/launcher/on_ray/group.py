"""The placement group of a run: all that has a device is reserved together, before anything starts, and named after the run.

missing? ─ for good ─▶ refused       else: asked of Ray ▸ waited for, cluster.wait_s at most ▸ GPUs looked at ▸ services ▸ removed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bus.errors import ConfigError
from services.config import RunConfig
from services.launcher.on_ray.asking import alive_nodes, collect
from services.launcher.on_ray.gpus import LOOK_S, complaint, look, read
from services.launcher.on_ray.placement import GPU, Bundle, Node, Placement
from services.launcher.on_ray.room import missing
from services.launcher.protocol import Say
from services.telling import Telling

logger = logging.getLogger(__name__)


POLL_S = 0.2
TOLD_AFTER_S = 2.0
TOLD_AGAIN_S = 30.0
LEAVING_S = 20.0
"""Longest wait for what a driver that ended has left on the cluster, which Ray ends."""
LESS = "lower what the run needs (replicas.*, actor.ranks, cluster.*)"
NODES_TOLD = 3
START_S = 60.0
"""Longest wait for a first process of ours in each reserved part."""


def name_of(run: str) -> str:
    """What the placement group of a run is called; its services' actors begin with it, too."""
    return f"swingshift:{run}"


def refuse_second(run: str, say: Say) -> None:
    """Raises ConfigError while another driver has the run on this cluster. What a driver left that ended is waited for."""
    telling = Telling(TOLD_AFTER_S, TOLD_AGAIN_S)
    while holders := _holders(run):
        if telling.waited_s > LEAVING_S:
            raise ConfigError(
                f"run {run} is on this cluster already ({', '.join(holders[:3])}): another driver runs it; wait until it has ended, "
                "or stop it with `swingshift stop`"
            )
        if telling.is_due():
            say(f"{', '.join(holders[:3])} is still on the cluster: waiting for its end, for {LEAVING_S:g} s at most")
        time.sleep(POLL_S)


def _holders(run: str) -> list[str]:
    """What there is on the cluster under the run's name."""
    import ray
    from ray.util import list_named_actors

    name = name_of(run)
    table = ray.util.placement_group_table()
    groups = [group["name"] for group in table.values() if _is_of(group["name"], name) and group["state"] != "REMOVED"]
    return groups + [actor for actor in list_named_actors() if _is_of(actor, name)]


def _is_of(found: str, name: str) -> bool:
    return found == name or found.startswith(f"{name}:")


class RayGroups:
    """Ray's placement groups, as `Bundles` needs them."""

    def make(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Sequence[Mapping[str, str]]) -> object:
        import ray

        group: object = ray.util.placement_group(
            [dict(bundle) for bundle in bundles], strategy=strategy, name=name, bundle_label_selector=[dict(each) for each in selectors]
        )
        return group

    def nodes(self, group: object) -> Mapping[int, str]:
        import ray

        try:
            table = ray.util.placement_group_table(group)
        except (ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
            logger.warning("the cluster does not say where a group is: %s", error)
            return {}
        return {number: node for number, node in table["bundles_to_node_id"].items() if node}

    def remove(self, group: object) -> None:
        import ray

        ray.util.remove_placement_group(group)


@contextmanager
def reserved(placement: Placement, nodes: Sequence[Node], run: str, config: RunConfig, say: Say) -> Iterator[object | None]:
    """Ray's placement group while the block runs; None: nothing of this run has to be reserved. Raises ConfigError without room."""
    refuse_too_small(placement, nodes)
    if not placement.bundles:
        yield None
        return
    groups, bundles = RayGroups(), placement.bundles
    group = groups.make(name_of(run), [each.resources for each in bundles], placement.strategy, [each.selector for each in bundles])
    try:
        _wait_for_room(group, placement, config, say)
        check_gpus(group, placement, config, say)
        yield group
    finally:
        groups.remove(group)


def refuse_too_small(placement: Placement, nodes: Sequence[Node]) -> None:
    """Raises ConfigError where not even an idle cluster has room."""
    lack = missing(placement, nodes)
    if lack is not None and lack.for_good:
        raise ConfigError(f"the cluster is too small: {lack.words}{_unused(nodes)}; add nodes, or {LESS}")


def _unused(nodes: Sequence[Node]) -> str:
    """Nodes that are there and cannot be used, or not for everybody."""
    told = [f"{node.name}: {next(iter(node.lacks.values()))}" for node in nodes if node.lacks]
    more = [f"{len(told) - NODES_TOLD} more nodes"] if len(told) > NODES_TOLD else []
    return f"; not everybody can be on {'; '.join(told[:NODES_TOLD] + more)}" if told else ""


def _wait_for_room(group: object, placement: Placement, config: RunConfig, say: Say) -> None:
    telling = Telling(TOLD_AFTER_S, TOLD_AGAIN_S)
    while not group.wait(POLL_S):  # type: ignore[attr-defined]
        if (waited := telling.waited_s) > max(config.cluster.wait_s, TOLD_AFTER_S):
            raise ConfigError(
                f"there is no room on the cluster, also after {waited:.0f} s (cluster.wait_s): {_lack(placement)}; "
                f"wait until others have ended, add nodes, or {LESS}"
            )
        if telling.is_due():
            say(f"waiting for room on the cluster, for {config.cluster.wait_s:g} s at most: {_lack(placement)}")


def _lack(placement: Placement) -> str:
    lack = missing(placement, alive_nodes())
    return "Ray has not reserved it yet" if lack is None else lack.words


def check_gpus(group: object, placement: Placement, config: RunConfig, say: Say) -> None:
    """Raises ConfigError for a reserved GPU whose memory others hold."""
    parts = {str(number): bundle for number, bundle in enumerate(placement.bundles) if GPU in bundle.resources}
    if not parts:
        return
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

    asked = ray.remote(num_cpus=0, max_retries=0)(look)
    refs = {
        part: asked.options(num_gpus=bundle.resources[GPU], scheduling_strategy=InGroup(group, int(part))).remote("")
        for part, bundle in parts.items()
    }
    answers = collect(refs, {part: _called(bundle) for part, bundle in parts.items()}, START_S + LOOK_S, say)
    for part, bundle in parts.items():
        if answers[part].error:
            raise ConfigError(f"the GPUs for {_called(bundle)} cannot be looked at: {answers[part].error}")
        found = read(answers[part].text)
        if words := complaint(bundle.services, found.gpus, found.node, config):
            raise ConfigError(words)


def _called(bundle: Bundle) -> str:
    return " and ".join(dict.fromkeys(bundle.services))
