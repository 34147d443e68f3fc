"""Questions to the cluster's nodes: which there are, and what each of them, or each reserved part of them, has to say.

A question is a function of this checkout that takes and gives text. All are put at once and waited for together, for a limited time, and no
`ray.get` is used: it would block whichever loop it is called in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from services.launcher.on_ray.orders import label_of
from services.launcher.on_ray.placement import Node
from services.launcher.protocol import Say
from services.telling import Telling

Question = Callable[[str], str]

TOLD_AFTER_S = 2.0
TOLD_AGAIN_S = 10.0
_WORDS = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, or why nothing was."""

    text: str = ""
    error: str = ""


def alive_nodes() -> list[Node]:
    """The nodes of the cluster, in the order of their names."""
    import ray

    # Ray says it by node nowhere else.
    from ray._private.state import available_resources_per_node

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    nodes = [
        Node(
            found["NodeID"],
            label_of(found["NodeID"], found["NodeManagerHostname"]),
            dict(found["Resources"]),
            dict(free.get(found["NodeID"], {})),
        )
        for found in ray.nodes()
        if found["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.name, node.id))


def ask_nodes(question: Question, text: str, nodes: Mapping[str, str], patience_s: float, say: Say) -> dict[str, Answer]:
    """Puts the question on each node (id -> name); returns id -> answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = ray.remote(num_cpus=0, max_retries=0)(question)
    refs = {node: asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(text) for node in nodes}
    return collect(refs, nodes, patience_s, say)


def collect(refs: Mapping[str, object], names: Mapping[str, str], patience_s: float, say: Say) -> dict[str, Answer]:
    """Waits for what was asked; `names` is what messages call those who were."""
    futures: dict[str, Future[str]] = {key: ref.future() for key, ref in refs.items()}  # type: ignore[attr-defined]
    telling = Telling(TOLD_AFTER_S, TOLD_AGAIN_S)
    pending = set(futures.values())
    while pending and (left_s := patience_s - telling.waited_s) > 0:
        pending = wait(pending, max(0.0, min(telling.rest_s, left_s)), FIRST_COMPLETED).not_done
        if pending and telling.is_due():
            silent = [names[key] for key, future in futures.items() if future in pending]
            say(f"{len(futures) - len(pending)} of {len(futures)} nodes have answered; waiting for {', '.join(silent[:3])}")
    return {key: _answer(future, patience_s) for key, future in futures.items()}


def _answer(future: Future[str], patience_s: float) -> Answer:
    if not future.done():
        return Answer(error=f"it did not answer within {patience_s:g} s")
    error = future.exception()
    if error is None:
        return Answer(future.result())
    words = " ".join(str(error).split())
    return Answer(error=f"{type(error).__name__}: {words[-_WORDS:]}")
