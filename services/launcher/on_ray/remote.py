"""Calls that go over Ray, and the four things that can come of one. Nobody waits for them: what came of a call is posted.

    call ──▶ Ray ──▶ node        Ray's thread ── post(then(outcome)) ──▶ the launcher's thread

No `ray.get` anywhere: it would block whichever thread, or loop, it is called in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from services.launcher.on_ray.actor import CALLS, ServiceActor
from services.launcher.on_ray.asking import Question
from services.launcher.on_ray.placement import Seat
from services.launcher.on_ray.remains import sweep

logger = logging.getLogger(__name__)

TAKEN_NAMES = 100
"""So many names may be in use still: what is left of a driver that was killed."""
REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Said:
    """The answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The actor has died, or never came to be."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not do what it was asked for, and lives."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nobody knows: it may live, and may have done it. Ask again."""

    reason: str


Outcome = Said | Gone | Failed | Unclear
Then = Callable[[Outcome], None]
Post = Callable[[Callable[[], None]], None]
"""Has something done in the launcher's thread."""


class Actor(Protocol):
    """One actor, as the launcher's thread sees it."""

    def call(self, method: str, then: Then, *arguments: str) -> None:
        """Asks it; returns at once."""

    def discard(self) -> None:
        """Ends it, and so what it has started, however busy it is. Does nothing once it has died."""


class RayActor:
    """One of Ray's."""

    def __init__(self, actor: object, post: Post) -> None:
        self._actor = actor
        self._post = post

    def call(self, method: str, then: Then, *arguments: str) -> None:
        hear(getattr(self._actor, method).remote(*arguments), then, self._post)

    def discard(self) -> None:
        import ray

        ray.kill(self._actor)


def open_actor(names: Callable[[], str], seat: Seat, group: object | None, post: Post) -> RayActor:
    """A new actor in a seat; Ray looks for its node meanwhile. `names`: gives another one each time; `group`: whose bundle it names."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    in_group = seat.bundle is not None
    options = {
        "num_cpus": seat.num_cpus, "num_gpus": seat.num_gpus, "resources": dict(seat.resources), "max_concurrency": CALLS,
        "max_restarts": 0, "max_task_retries": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, seat.bundle) if in_group else "DEFAULT",
    }  # fmt: skip
    if not in_group and seat.selector:
        options["label_selector"] = seat.selector
    for _ in range(TAKEN_NAMES):
        try:
            return RayActor(ray.remote(ServiceActor).options(name=names(), **options).remote(), post)
        except ray.exceptions.ActorAlreadyExistsError as error:
            logger.info("an actor of a driver that has ended is still there: %s", error)
    raise AssertionError(f"{TAKEN_NAMES} actors of this run are still there, and no driver may have it twice")


def sweep_node(node: str, remains: str, then: Then, post: Post) -> None:
    """Has what is left of a service on a node killed."""
    ask_node(sweep, node, remains, then, post)


def ask_node(question: Question, node: str, text: str, then: Then, post: Post) -> None:
    """Puts a question on a node; returns at once."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(question)
    hear(task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(text), then, post)


def living_nodes() -> frozenset[str]:
    """Ids of the nodes that the cluster believes to be alive."""
    import ray

    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def hear(reference: object, then: Then, post: Post) -> None:
    """Has the outcome of a call posted, once there is one."""

    def come(future: Future[str]) -> None:
        post(lambda: then(outcome_of(future)))

    future: Future[str] = reference.future()  # type: ignore[attr-defined]
    future.add_done_callback(come)


def outcome_of(future: Future[str]) -> Outcome:
    """What came of a call."""
    import ray

    error = future.exception()
    if error is None:
        return Said(future.result())
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        return Failed(_short(f"{type(cause).__name__}: {cause}"))
    if isinstance(error, _deadly()) and not isinstance(error, ray.exceptions.ActorUnavailableError):
        return Gone(_short(_reason(str(error))))
    return Unclear(_short(f"{type(error).__name__}: {error}"))


def _deadly() -> tuple[type[BaseException], ...]:
    """After these an actor is given up. That nobody is left of what it had started is looked at in any case."""
    from ray import exceptions as known

    never_came = (known.RuntimeEnvSetupError, known.ActorUnschedulableError, known.ActorPlacementGroupRemoved)
    return known.RayActorError, known.NodeDiedError, known.WorkerCrashedError, known.OutOfMemoryError, *never_came


def _reason(words: str) -> str:
    """From the sentence on that says why, of the many that Ray says of a dead actor."""
    found = words.find("The actor is dead because")
    return words[max(0, found) :]


def _short(words: str) -> str:
    return " ".join(words.split())[:REASON_CHARACTERS]
