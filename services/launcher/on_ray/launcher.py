"""Services as actors of a Ray cluster: Ray finds a node for each, and the supervisor, which is the driver, says when.

    supervisor ─spawn─▶ RayHandle ──post──▶ ┌ the launcher's thread ┐ ──calls──▶ Ray ──▶ ServiceActor ─▶ service
               ◀─poll──     ▲               │ mailbox, timers,      │
                            └── states ──── │ which nodes are alive │ ◀─outcomes── Ray's threads
                                            └───────────────────────┘

One actor is one incarnation, and Ray never restarts it by itself: the log has to hear of an end (`ServiceLost`) before anybody comes back.
All calls of Ray are made by this one thread, so that neither the supervisor nor Ray's own threads ever wait for one.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from bus.errors import SwingshiftError
from bus.sources import TRAINER
from services.launcher.local import Command
from services.launcher.on_ray.bundles import Bundles
from services.launcher.on_ray.group import RayGroups, name_of
from services.launcher.on_ray.handle import AGAIN_S, Orders, RayHandle
from services.launcher.on_ray.holder import Holder
from services.launcher.on_ray.newcomers import Newcomers, Survey
from services.launcher.on_ray.orders import Where
from services.launcher.on_ray.placement import GPU, Placement, Seat
from services.launcher.on_ray.ranks import Gang
from services.launcher.on_ray.remote import Actor, Then, ask_node, living_nodes, open_actor, sweep_node
from services.launcher.on_ray.room import amounts_in_words
from services.launcher.protocol import Handle, RunPlace, ServiceSpec

logger = logging.getLogger(__name__)

TURN_S = 0.2
"""How often it looks at what is due."""
NODES_S = 1.0
"""How often it asks which nodes are alive."""
SILENT_S = 15.0
"""After so long without an answer of the cluster the user is told."""
CLOSE_S = 15.0
"""How long what is still there at the end may take to be gone."""


class RayLauncher:
    """Of one run; its services end with the block. `group`: Ray's placement group, if the placement has bundles.

    `survey`: what is known of nodes, and how others are asked; None: every node has everything.
    """

    def __init__(
        self, place: RunPlace, placement: Placement, group: object | None, command: Command | None = None, survey: Survey | None = None
    ) -> None:
        self.orders = Orders(place, Path.cwd(), command)
        self._placement = placement
        self._bundles = Bundles(placement, group, name_of(place.run), RayGroups())
        self._newcomers = None if survey is None else Newcomers(survey, partial(ask_node, survey.look, post=self.post), self.later)
        self._numbers = itertools.count(1)
        self._mailbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._handles: list[RayHandle] = []
        self._holders = {
            number: Holder(partial(self._open_holder, number), self.later) for number, bundle in enumerate(placement.bundles) if bundle.held
        }
        self._say = logger.warning if survey is None else survey.say
        self._nodes_at = 0.0
        self._turned_at = time.monotonic()
        self._is_silent = False
        self._ending = threading.Event()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ray launcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.post(self._end_all)
        give_up = time.monotonic() + CLOSE_S
        while self._failure is None and time.monotonic() < give_up and not (self._ending.is_set() and not self._left()):
            time.sleep(TURN_S / 10)
        if left := self._left():
            logger.warning("not known to have ended: %s", ", ".join(handle.spec.source for handle in left))
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._bundles.close()
        if self._newcomers is not None:
            self._newcomers.close()

    def spawn(self, spec: ServiceSpec) -> Handle:
        if spec.service == TRAINER and len(self._placement.ranks) > 1:
            return Gang(self, spec, self._placement.ranks)
        return self.seat(spec, self._placement.seats[self._seated_as(spec)], RayHandle.start)

    def seat(self, spec: ServiceSpec, seat: Seat, placed: Callable[[RayHandle], None]) -> RayHandle:
        """Asks for an actor in a seat; `placed` is called in this launcher's thread when it has one, and is to start the service in it."""
        handle = RayHandle(self, spec, seat, self._needs(spec, seat), partial(self._admit, placed))
        self.post(partial(self._begin, handle))
        return handle

    def _seated_as(self, spec: ServiceSpec) -> str:
        """By what name the placement knows it: a policy that is tried sits where policies do."""
        return spec.source if spec.source in self._placement.seats else spec.service

    def _needs(self, spec: ServiceSpec, seat: Seat) -> str:
        """In words."""
        bundle = None if seat.bundle is None else self._placement.bundles[seat.bundle]
        amounts = amounts_in_words(bundle.resources if bundle is not None else {GPU: seat.num_gpus, "CPU": seat.num_cpus, **seat.resources})
        with_room = "a node" if amounts == "nothing" else f"a node with {amounts}"
        barred = len(self._barred(spec, seat))
        return f"{with_room}, not one of the {barred} that lack something for it" if barred else with_room

    def _barred(self, spec: ServiceSpec, seat: Seat) -> tuple[str, ...]:
        """Ids of nodes that it may not be on."""
        if seat.bundle is not None:
            return self._bundles.barred(seat.bundle)
        joined = () if self._newcomers is None else self._newcomers.barred((self._seated_as(spec),))
        return (*seat.barred, *joined)

    # --- what handles need --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self._failure is not None:
            raise SwingshiftError(f"nobody looks after the services on the cluster any more: {self._failure!r}") from self._failure
        if not self._is_silent and time.monotonic() - self._turned_at > SILENT_S:
            self._is_silent = True
            self._say(
                f"the Ray cluster has not answered for {SILENT_S:g} s: does its head still run? Ray ends this command when it is not back "
                f"within about a minute; then: swingshift run --resume {self.orders.place.folder} --on ray"
            )

    def now(self) -> float:
        return time.monotonic()

    def post(self, action: Callable[[], None]) -> None:
        self._mailbox.put(action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((self.now() + seconds, action))

    def open(self, spec: ServiceSpec, seat: Seat) -> Actor:
        if seat.bundle is None:
            return open_actor(partial(self._name, spec.log_name), replace(seat, barred=self._barred(spec, seat)), None, self.post)
        group, number = self._bundles.where(seat.bundle)
        return open_actor(partial(self._name, spec.log_name), replace(seat, bundle=number), group, self.post)

    def sweep(self, node: str, remains: str, then: Then) -> None:
        sweep_node(node, remains, then, self.post)

    # --- in the launcher's thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except BaseException as error:  # the supervisor must hear of it, whatever it is
            logger.exception("the launcher has failed")
            self._failure = error

    def _turn(self) -> None:
        self._turned_at, self._is_silent = self.now(), False
        try:
            self._mailbox.get(timeout=TURN_S)()
            while True:
                self._mailbox.get_nowait()()
        except queue.Empty:
            pass
        now = self.now()
        due = [action for at, action in self._timers if at <= now]
        self._timers = [(at, action) for at, action in self._timers if at > now]
        for action in due:
            action()
        if now >= self._nodes_at:
            self._nodes_at = now + NODES_S
            self._look_at_nodes()

    def _look_at_nodes(self) -> None:
        self._handles = self._left()
        if not self._handles:
            return
        alive = self._living_nodes()
        for handle in self._handles:
            handle.look(alive)
        if alive is not None:
            self._leave(self._bundles.found_again(lambda node, services: node in alive and not self._lack(node, services)))

    def _living_nodes(self) -> frozenset[str] | None:
        from ray.exceptions import RayError

        try:
            return living_nodes()
        except (RayError, ConnectionError, TimeoutError) as error:
            logger.warning("the cluster does not say which nodes are alive: %s", error)
            return None

    def _begin(self, handle: RayHandle) -> None:
        self._handles.append(handle)
        handle.begin()

    def _admit(self, placed: Callable[[RayHandle], None], handle: RayHandle) -> None:
        """A handle has been placed: is its node one for it?"""
        where, seat = handle.where, handle.seat
        if where is None or handle.has_ended:
            return
        services = (self._seated_as(handle.spec),) if seat.bundle is None else self._bundles.services(seat.bundle)
        lack = self._lack(where.node, services)
        if lack is None:
            assert self._newcomers is not None
            handle.needs = f"an answer of node {where.label}, which has joined"
            self._newcomers.ask(where, lambda: self._admit(placed, handle) if handle.where is where else None)
        elif not lack:
            self._find_gpus(placed, handle)
        else:
            assert self._newcomers is not None
            self._newcomers.tell(where, services, lack)
            if seat.bundle is None:
                handle.leave(self._needs(handle.spec, seat))
            else:
                self._bundles.leave(seat.bundle, tuple(dict.fromkeys((*self._newcomers.barred(services), where.node))))
                self._leave(self._bundles.together(seat.bundle))

    def _lack(self, node: str, services: Sequence[str]) -> str | None:
        """Why a node is not for these; empty: it is. None: nobody has asked it yet."""
        return "" if self._newcomers is None else self._newcomers.lack(node, services)

    def _leave(self, bundles: Sequence[int]) -> None:
        """Whoever is to sit in these bundles, which are elsewhere now, and was not started yet."""
        for bundle in bundles:
            if bundle in self._holders:
                self._holders[bundle].leave()
        for handle in self._left():
            if handle.seat.bundle in bundles:
                handle.leave(self._needs(handle.spec, handle.seat))

    def _find_gpus(self, placed: Callable[[RayHandle], None], handle: RayHandle) -> None:
        """A handle has been placed: which GPUs are its own?"""
        seat = handle.seat
        if not seat.held:
            placed(handle)
            return
        assert seat.bundle is not None
        self._holders[seat.bundle].ask(partial(self._take_held, placed, handle))

    def _take_held(self, placed: Callable[[RayHandle], None], handle: RayHandle, held: Where) -> None:
        if handle.where is None:
            return
        if held.node != handle.where.node:
            # The bundle has moved, for its node was lost: one of the two actors does not know it yet.
            self.later(AGAIN_S, partial(self._find_gpus, placed, handle))
            return
        handle.gpus = tuple(held.gpus[number] for number in handle.seat.held)
        placed(handle)

    def _open_holder(self, bundle: int) -> Actor:
        group, number = self._bundles.where(bundle)
        seat = Seat(number, num_gpus=self._placement.bundles[bundle].resources[GPU])
        return open_actor(partial(self._name, f"gpus-{bundle}"), seat, group, self.post)

    def _name(self, who: str) -> str:
        return f"{name_of(self.orders.place.run)}:{who}:{next(self._numbers)}"

    def _end_all(self) -> None:
        for handle in self._left():
            handle.kill()
        for holder in self._holders.values():
            holder.close()
        self._ending.set()

    def _left(self) -> list[RayHandle]:
        return [handle for handle in self._handles if not handle.has_ended]
