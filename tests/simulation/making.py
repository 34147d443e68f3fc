"""Makes the services of a simulated run, some of them with cores whose code was changed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from bus.core import Core
from bus.entry import Entry
from bus.events import Event, ServiceStarted, SwitchStarted
from services.controller.core import ControllerCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.services import CODE, OTHER_CODE, SimController, SimRollouter, SimService
from tests.simulation.trainer import SimTrainer

if TYPE_CHECKING:
    from tests.simulation.world import World


class OtherRollouter(RollouterCore):
    """The rollouter after a change of code: it routes in another rotation."""

    def apply(self, entry: Entry) -> None:
        super().apply(entry)
        if entry.event.kind == "GenerationRequested":
            self._request_number += 1


class OtherController(ControllerCore):
    """The controller after a change of code: it gives the devices back a sample later, if another one can come."""

    def decide(self) -> Event | None:
        event = super().decide()
        early = isinstance(event, SwitchStarted) and event.reason == "give_back" and self.books.in_flight
        return None if early and len(self.books.ready) % 2 == 0 else event


class OtherTrainer(TrainerCore):
    """The trainer after a change of code: it says that it waits in other words."""

    def decide(self) -> Event | None:
        event = super().decide()
        return event.model_copy(update={"need": event.need + 1}) if event is not None and event.kind == "WaitSamples" else event  # type: ignore[attr-defined]


CORES: dict[str, dict[str, Callable[[], Core]]] = {
    CODE: {"trainer": TrainerCore, "rollouter": RollouterCore, "controller": ControllerCore},
    OTHER_CODE: {"trainer": OtherTrainer, "rollouter": OtherRollouter, "controller": OtherController},
}


def make_service(world: World, source: str, code: str, random: Random) -> SimService:
    """A process of one of the services with a core, but the policy."""
    core = CORES[code][source]()
    started = ServiceStarted(code=code)
    if isinstance(core, TrainerCore):
        return SimTrainer(world, core, started)
    if isinstance(core, RollouterCore):
        return SimRollouter(world, core, started)
    return SimController(world, core, started)
