"""If the controller is lost, every other service says so in its own log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bus.alive import Alive, Watched
from services.config import RunConfig
from services.context import ServiceContext
from services.entry import SERVICES
from services.launcher.protocol import RunPlace, ServiceSpec
from tests.services.monitor.logs import plan


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_loss_is_said_once_after_its_grace_and_the_return_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watched = Watched("controller", grace_s=10.0, clock=clock)
    for now, epoch in ((0.0, None), (60.0, None), (61.0, 1), (70.0, None), (79.0, None), (80.0, None), (90.0, None), (95.0, 2)):
        clock.now = now
        watched.look(epoch)
    assert heard(caplog) == [
        "controller is lost: its epoch 1 shows no sign of life; until it is started again nothing is decided that is its to decide",
        "controller is back: epoch=2",
    ]


def test_a_service_that_lives_hears_of_the_controllers_loss(redis_url: str, run: str, caplog: pytest.LogCaptureFixture) -> None:
    with Alive(redis_url, run, "trainer", 1, ttl_s=0.3, watched="controller"):
        with Alive(redis_url, run, "controller", 4, ttl_s=0.3):
            time.sleep(0.5)
        give_up = time.monotonic() + 30.0
        while not heard(caplog) and time.monotonic() < give_up:
            time.sleep(0.05)
    assert any("controller is lost: its epoch 4" in message for message in heard(caplog))


@pytest.mark.parametrize("service", SERVICES)
def test_every_other_service_listens(service: str, redis_url: str, run: str, tmp_path: Path) -> None:
    name = "s0" if service == "replica" else ""
    context = ServiceContext(RunPlace(redis_url, run, tmp_path), ServiceSpec(service, name), plan(), RunConfig(), "")
    assert context.alive(1).watches == (None if service == "controller" else "controller")
