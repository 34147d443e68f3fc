"""One incarnation of a service on a cluster, as its supervisor sees it.

    asked for ──Ray finds a node──▶ placed ──start──▶ runs ──its exit, told by its actor──▶ ended
        │                             │                │
        │                             │                └─ its actor has died ─▶ lost ─ a sweep of its node finds nobody left ─▶ ended
        └─────────────── killed ──────┴──▶ ended       └──── the cluster says that its node is dead ──────────────────────────▶ ended

An end counts when it is verified: by the actor, which has seen the whole process group go, by a sweep of the node, or by the cluster's word
that the node is dead. The supervisor's calls only look, or post what is to be done to the launcher's thread, which does all the rest.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from services.devices import CUDA, VISIBLE
from services.launcher.endings import exit_of, last_words
from services.launcher.local import Command
from services.launcher.on_ray.orders import Begun, Ended, Left, Order, Remains, Where
from services.launcher.on_ray.placement import Seat
from services.launcher.on_ray.remote import Actor, Failed, Gone, Outcome, Said, Then, Unclear
from services.launcher.protocol import RunPlace, ServiceSpec

logger = logging.getLogger(__name__)

AGAIN_S = 0.5
"""After what is unclear, how long until it is asked again."""
KILL_S = 5.0
"""How long an actor may take to kill its service, before it is ended itself."""
KILLED, TERMINATED, FAILED = -int(signal.SIGKILL), -int(signal.SIGTERM), 1


@dataclass(frozen=True, slots=True)
class Orders:
    """What all orders of a run have in common."""

    place: RunPlace
    working_folder: Path
    command: Command | None = None

    def order(self, spec: ServiceSpec, where: Where, gpus: tuple[str, ...], environment: Mapping[str, str]) -> Order:
        """For a service that has got these GPUs of a node."""
        visible = {VISIBLE: ",".join(gpus)} if gpus else {}
        return Order(
            place=self.place,
            spec=replace(spec, device=",".join(f"{CUDA}{number}" for number in range(len(gpus)))),
            command=None if self.command is None else tuple(self.command(spec)),
            environment={**visible, **environment},
            working_folder=self.working_folder,
            label=where.label,
        )


class Ground(Protocol):
    """What handles need of their launcher."""

    orders: Orders

    def check(self) -> None:
        """Raises if its thread does not run any more."""

    def now(self) -> float:
        """In seconds, monotonic."""

    def post(self, action: Callable[[], None]) -> None:
        """Has something done in its thread. From any thread."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """The same, after a while."""

    def open(self, spec: ServiceSpec, seat: Seat) -> Actor:
        """A new actor for a service."""

    def sweep(self, node: str, remains: str, then: Then) -> None:
        """Has what is left of a service on a node killed."""


class RayHandle:
    """See above. `placed` is called in the launcher's thread when Ray has found a node, and its GPUs are known: then `start` it."""

    def __init__(self, ground: Ground, spec: ServiceSpec, seat: Seat, needs: str, placed: Callable[[RayHandle], None]) -> None:
        self.spec = spec
        self.seat = seat
        self.where: Where | None = None
        """Once it has been placed."""
        self.gpus: tuple[str, ...] = ()
        """Those of its seat, as CUDA_VISIBLE_DEVICES names them on its node."""
        self.needs = needs
        """What it waits for before it is started, in words."""
        self._ground = ground
        self._placed = placed
        self._actor: Actor | None = None
        self._order: Order | None = None
        self._begun: Begun | None = None
        self._lost: str | None = None
        self._kill_by: float | None = None
        self._how = ""
        self._code: int | None = None

    # --- for the supervisor, from its thread --------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        self._ground.check()
        return self._code

    def terminate(self) -> None:
        self._ground.post(self._terminate)

    def kill(self) -> bool:
        self._ground.post(self._kill)
        return True

    def waits_for(self) -> str:
        return self.needs if self._code is None and self._order is None else ""

    def how_it_ended(self) -> str:
        return self._how

    @property
    def has_ended(self) -> bool:
        """Verified."""
        return self._code is not None

    # --- in the launcher's thread -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Asks Ray for a node."""
        if self._code is None:
            self._actor = self._ground.open(self.spec, self.seat)
            self._ask("where", self._hear_where)

    def ask(self, method: str, then: Callable[[str], None]) -> None:
        """Asks the actor something else, until it has answered. `then` is called in the launcher's thread."""

        def hear(outcome: Outcome) -> None:
            match outcome:
                case Said(text):
                    then(text)
                case _:
                    self._without_answer(outcome, lambda: self.ask(method, then))

        self._ask(method, hear)

    def start(self, spec: ServiceSpec | None = None, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        """Starts the service where it was placed. Does nothing once it was ended."""
        if self._code is not None or self._lost is not None:
            return
        assert self.where is not None
        self._order = self._ground.orders.order(spec or self.spec, self.where, self.gpus, environment)
        self._ask_start()

    def leave(self, needs: str) -> None:
        """It is not to be where it is placed, or would be: asks Ray for another node. Does nothing once it was started, or ended."""
        if self._code is not None or self._order is not None or self._actor is None:
            return
        self._actor.discard()
        self.needs, self.where, self.gpus = needs, None, ()
        self.begin()

    def look(self, alive: frozenset[str] | None) -> None:
        """Once in a while. `alive`: nodes that the cluster believes in; None: it did not say."""
        if self._code is not None or self.where is None:
            return
        if alive is not None and self.where.node not in alive:
            self._end(KILLED, f"the node {self.where.label} is gone")
        elif self._kill_by is not None and self._ground.now() >= self._kill_by and self._actor is not None:
            logger.warning("its actor does not kill it, and is ended: source=%s node=%s", self.spec.source, self.where.label)
            self._kill_by = None
            self._actor.discard()

    def _ask(self, method: str, then: Then, *arguments: str) -> None:
        actor = self._actor
        assert actor is not None
        if self._code is None and self._lost is None:
            # One that was left has nothing to say any more.
            actor.call(method, lambda outcome: then(outcome) if self._actor is actor else None, *arguments)

    def _hear_where(self, outcome: Outcome) -> None:
        match outcome:
            case Said(text):
                self.where = Where.model_validate_json(text)
                self.gpus = self.where.gpus
                if self._code is None:
                    self._placed(self)
            case _:
                self._without_answer(outcome, lambda: self._ask("where", self._hear_where))

    def _ask_start(self) -> None:
        assert self._order is not None
        self._ask("start", self._hear_start, self._order.model_dump_json())

    def _hear_start(self, outcome: Outcome) -> None:
        match outcome:
            case Said(text):
                self._begun = Begun.model_validate_json(text)
                self._ask("wait", self._hear_wait)
            case _:
                self._without_answer(outcome, self._ask_start)

    def _hear_wait(self, outcome: Outcome) -> None:
        match outcome:
            case Said(""):
                self._ask("wait", self._hear_wait)
            case Said(text):
                ended = Ended.model_validate_json(text)
                self._end(ended.code, ended.how)
            case _:
                self._without_answer(outcome, lambda: self._ask("wait", self._hear_wait))

    def _without_answer(self, outcome: Outcome, again: Callable[[], None]) -> None:
        if self._code is not None or self._lost is not None:
            return
        match outcome:
            case Unclear(reason):
                logger.info("its actor does not answer: source=%s reason=%s", self.spec.source, reason)
                self._ground.later(AGAIN_S, again)
            case Gone(reason) | Failed(reason) if self._order is None:
                self._end(FAILED, f"it could not be started: {reason}")
            case Gone(reason):
                self._lose(f"{exit_of(KILLED)} on {self._label}, for its actor has died ({reason})")
            case Failed(reason):
                self._lose(f"it could not be started on {self._label}: {reason}")
            case Said():
                raise AssertionError("that is an answer")

    @property
    def _label(self) -> str:
        return "" if self.where is None else self.where.label

    def _lose(self, why: str) -> None:
        """Its actor is gone, or is no use: whoever it has started may live on."""
        assert self._actor is not None
        logger.warning("lost: source=%s why=%s", self.spec.source, why)
        self._lost = why
        self._actor.discard()
        self._sweep()

    def _sweep(self) -> None:
        if self._code is None:
            assert self.where is not None
            assert self._order is not None
            remains = Remains(token=self._order.spec.token, begun=self._begun)
            self._ground.sweep(self.where.node, remains.model_dump_json(), self._hear_sweep)

    def _hear_sweep(self, outcome: Outcome) -> None:
        if self._code is not None:
            return
        if isinstance(outcome, Said):
            left = Left.model_validate_json(outcome.text).pids
            if not left:
                assert self._lost is not None
                code = KILLED if self._begun is not None else FAILED
                self._end(code, f"{self._lost}{last_words(self._ground.orders.place, self.spec.log_name)}")
                return
            logger.warning("it cannot be killed: source=%s node=%s processes=%s", self.spec.source, self._label, left)
        else:
            logger.info("its node could not be looked at: source=%s node=%s outcome=%s", self.spec.source, self._label, outcome)
        self._ground.later(AGAIN_S, self._sweep)

    def _terminate(self) -> None:
        self._ask_to_end("terminate", TERMINATED)

    def _kill(self) -> None:
        self._ask_to_end("kill", KILLED)
        if self._code is None and self._kill_by is None:
            self._kill_by = self._ground.now() + KILL_S

    def _ask_to_end(self, word: str, code: int) -> None:
        if self._code is None and self._order is None:
            self._end(code, f"{exit_of(code)}, before it was started; it waited for {self.needs}")
        elif self._code is None:
            self._ask(word, lambda outcome: logger.debug("%s: source=%s outcome=%s", word, self.spec.source, outcome))

    def _end(self, code: int, how: str) -> None:
        """From here on it is known to have ended."""
        if self._code is None:
            self._how = how
            self._code = code
            if self._actor is not None:
                self._actor.discard()
