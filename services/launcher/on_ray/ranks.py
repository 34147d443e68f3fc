"""A trainer of several ranks on a cluster: an actor for each of them, and for the supervisor one service.

    a seat for each ─▶ all are placed ─▶ a port of rank 0's node ─▶ start each: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    one has ended, and is missed ──ENDS_S──▶ the others are killed ─▶ all of them are verified to be gone ─▶ the trainer's exit

Ranks find each other as those that torchrun starts do. Without one of them the others can do nothing, so they come and go together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from services.launcher.on_ray.handle import RayHandle
from services.launcher.on_ray.placement import Seat
from services.launcher.protocol import ServiceSpec

logger = logging.getLogger(__name__)

ENDS_S = 10.0
"""How long the others may take to notice that one is gone, and to say so; one that waits for it in a collective may never."""


class Seats(Protocol):
    """What gives seats to ranks."""

    def seat(self, spec: ServiceSpec, seat: Seat, placed: Callable[[RayHandle], None]) -> RayHandle:
        """Asks for an actor; `placed` is called when it has one, by one thread that is the same for all."""

    def now(self) -> float:
        """In seconds, monotonic."""


class Gang:
    """One incarnation of a trainer, a `Handle`. `seats`: one a rank."""

    def __init__(self, launcher: Seats, spec: ServiceSpec, seats: Sequence[Seat]) -> None:
        self._now = launcher.now
        self._size = len(seats)
        self._there: dict[int, RayHandle] = {}
        """Ranks that have a place; only looked at by the thread that tells of them."""
        self._started = False
        self._missed_at: float | None = None
        """When the first was found to have ended whom the others need, or who needs them."""
        self._first = 0
        self._killed: frozenset[int] = frozenset()
        """Ranks that had not ended by themselves."""
        self._ranks = [launcher.seat(_of_rank(spec, rank), seat, partial(self._placed, rank)) for rank, seat in enumerate(seats)]

    def poll(self) -> int | None:
        codes = [rank.poll() for rank in self._ranks]
        missed = [rank for rank, code in enumerate(codes) if code is not None and (code or rank == 0)]
        if missed and self._missed_at is None:
            self._missed_at, self._first = self._now(), missed[0]
        patience_s = ENDS_S if self._started else 0.0
        if self._missed_at is not None and None in codes and not self._killed and self._now() >= self._missed_at + patience_s:
            self._killed = frozenset(rank for rank, code in enumerate(codes) if code is None)
            logger.warning("ranks that go on without rank %d are killed: %s", self._first, ", ".join(map(str, sorted(self._killed))))
            self._kill_all()
        return None if None in codes else codes[self._telling]

    def terminate(self) -> None:
        # The others end with rank 0, when it says so.
        for rank in self._ranks[:1] if self._started else self._ranks:
            rank.terminate()

    def kill(self) -> bool:
        self._kill_all()
        return True

    def waits_for(self) -> str:
        waiting = [(number, rank.waits_for()) for number, rank in enumerate(self._ranks) if rank.where is None]
        return "; ".join(f"{what} for rank {number} of {self._size}" for number, what in waiting if what)

    def how_it_ended(self) -> str:
        others = [rank for rank in range(self._size) if rank != self._telling and self._ranks[rank].poll()]
        return "; ".join(f"rank {rank} of {self._size}: {self._ranks[rank].how_it_ended()}" for rank in (self._telling, *others))

    @property
    def _telling(self) -> int:
        """The rank whose exit is the trainer's: rank 0, unless it had to be killed because another one was gone."""
        return self._first if 0 in self._killed else 0

    def _kill_all(self) -> None:
        for rank in self._ranks:
            rank.kill()

    # --- in the launcher's thread -------------------------------------------------------------------------------------------------

    def _placed(self, number: int, rank: RayHandle) -> None:
        self._there[number] = rank
        if len(self._there) == self._size:
            self._there[0].ask("free_port", self._start_all)

    def _start_all(self, port: str) -> None:
        first = self._there[0].where
        assert first is not None, "it has a place"
        self._started = True
        for number, rank in sorted(self._there.items()):
            rank.start(environment=environment_of(number, self._size, first.address, port))


def environment_of(rank: int, size: int, address: str, port: str) -> Mapping[str, str]:
    """What a rank has to be told, as torchrun does; of the GPUs of its node it sees its own alone, so that is its first."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "MASTER_ADDR": address, "MASTER_PORT": port}


def _of_rank(spec: ServiceSpec, rank: int) -> ServiceSpec:
    """Each has a word of its own, so that what is left of one is not taken for another."""
    return replace(spec, rank=rank, token=f"{spec.token}-rank{rank}") if rank else spec
