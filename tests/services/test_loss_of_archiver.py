"""Without an archiver nothing is recorded, and nobody frees the server's memory: a run waits for one for a while, then it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from bus.entry import Entry
from bus.events import DeadlineMissed, Event, RunEnded, ServiceLost, ServiceStarted, ServiceStopped
from services.config import RunConfig
from services.context import ServiceContext
from services.controller import loss
from services.controller.core import ControllerCore
from services.controller.expected import Expected
from services.controller.loss import LossWatch
from services.launcher.protocol import RunPlace, ServiceSpec
from services.shell import Facts, Shell
from tests.bus.factories import plan


class Story:
    """A controller that is told a log."""

    def __init__(self) -> None:
        self.core = ControllerCore()
        self.position = 0
        self.tell("supervisor", 0, plan("r").model_copy(update={"standalone": ("s0",)}))

    def tell(self, source: str, epoch: int, *events: Event) -> None:
        for event in events:
            self.position += 1
            self.core.apply(Entry(self.position, source, epoch, False, 0, 0, "", event))

    def limits(self) -> dict[str, float]:
        return {deadline.key: deadline.seconds for deadline in self.core.deadlines() if deadline.key.startswith("archiver")}


START = ServiceStarted(code="")


def lost(epoch: int, *, restarting: bool) -> ServiceLost:
    return ServiceLost(service="archiver", epoch=epoch, restarting=restarting, detail="signal 9")


def test_an_archiver_that_is_lost_for_good_ends_the_run() -> None:
    story = Story()
    story.tell("archiver", 1, START)
    story.tell("supervisor", 0, lost(1, restarting=False))
    assert story.core.decide() == RunEnded(reason="service_lost", detail="archiver: signal 9")


def test_one_that_may_come_back_is_waited_for_and_no_longer_once_it_is_back() -> None:
    story = Story()
    story.tell("archiver", 1, START)
    assert story.limits() == {}
    story.tell("supervisor", 0, lost(1, restarting=True))
    assert story.limits() == {"archiver:1": plan("r").deadlines.archiver_s}
    assert story.core.decide() is None
    story.tell("archiver", 2, START)
    assert story.limits() == {}
    story.tell("controller", 1, DeadlineMissed(key="archiver:1", seconds=300.0))
    assert story.core.decide() is None


def test_one_that_does_not_come_back_in_time_ends_the_run() -> None:
    story = Story()
    story.tell("archiver", 1, START)
    story.tell("controller", 1, lost(1, restarting=True), DeadlineMissed(key="archiver:1", seconds=300.0))
    ended = story.core.decide()
    assert isinstance(ended, RunEnded)
    assert (ended.reason, ended.detail) == (
        "service_lost",
        "archiver: its epoch 1 was lost and none came back in time (deadlines.archiver_s)",
    )


def expected(*said: tuple[str, int, Event]) -> dict[str, int]:
    fold = Expected()
    for position, (source, epoch, event) in enumerate(said, 1):
        fold.apply(Entry(position, source, epoch, False, 0, 0, "", event))
    return fold.epochs


def test_who_started_is_expected_to_live_until_it_stops_or_is_lost() -> None:
    assert expected(("archiver", 1, START), ("replica:s0", 3, START), ("monitor", 1, START)) == {"archiver": 1, "replica:s0": 3}
    assert expected(("archiver", 1, START), ("archiver", 1, ServiceStopped(reason="done"))) == {}
    assert expected(("archiver", 1, START), ("archiver", 2, START), ("controller", 1, lost(1, restarting=True))) == {"archiver": 2}
    assert expected(("archiver", 1, START), ("controller", 1, lost(1, restarting=True))) == {}


class Hearing:
    """What the watch says to its shell."""

    position = 7

    def __init__(self) -> None:
        self.heard: list[tuple[Event, int]] = []

    def post(self, facts: Facts) -> None:
        self.heard += facts


def test_a_lapsed_archiver_is_called_lost_once(redis_url: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "TTL_S", 0.03)
    core, shell = ControllerCore(), Hearing()
    core.apply(Entry(1, "archiver", 4, False, 0, 0, "", START))
    place = RunPlace(redis_url, run, tmp_path)
    watch = LossWatch(ServiceContext(place, ServiceSpec("controller"), plan(run), RunConfig(), "", supervised=False), core)
    watch.recovered(cast(Shell, shell))
    give_up = time.monotonic() + 30.0
    while not shell.heard and time.monotonic() < give_up:
        time.sleep(0.01)
    watch.look(())
    time.sleep(0.2)
    watch.close()
    assert shell.heard == [(ServiceLost(service="archiver", epoch=4, restarting=True, detail="no sign of life for 0.06 s"), 7)]
