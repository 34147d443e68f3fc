"""A service that starts late: what the server has forgotten reaches its core all the same, on this host and on another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.core import Core
from bus.entry import Draft, Entry, Producer
from bus.events import RunEnded, RunPlanned
from bus.history import History
from bus.host import rebuild
from bus.recall import Recalling
from bus.recorder import Recorder
from bus.redis_log import RedisLog
from bus.snapshot import freeze
from bus.trimming import Trimming
from policies.registry import create
from services.config_file import make_config
from services.context import ServiceContext, make_context, read_plan
from services.controller.core import ControllerCore
from services.launcher.protocol import RunPlace, ServiceSpec
from services.plan import plan_run
from services.policy.core import PolicyCore
from services.shell import Idle, Shell
from tests.simulation.world import World

PATIENCE_S = 60.0


class Run:
    """A simulated run on a server, not ended yet; it is recorded in `archived`, and the server has only the newest entries."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        self.url, self.run, self.folder = url, run, folder
        self.archived = folder / "archived"
        settings = {
            "model": {"path": "scripted"},
            "rollout": {"engine": "scripted"},
            "devices": "unpinned",
            "async_training": {"total_steps": 9},
        }
        config = make_config(settings, "test")
        self.log = RedisLog.create(url, plan_run(config, run), 0)
        world = World(4)
        world.run()
        ended = next(entry.position for entry in world.store.entries if isinstance(entry.event, RunEnded))
        for entry in world.store.entries[1 : ended - 1]:
            self.log.append(Producer(entry.source, 0), [Draft(entry.event, entry.derived, entry.cause, entry.at)])
        with Recorder.open(self.archived, run, self.log.log_id) as recorder:
            while entries := self.log.read(recorder.last_position, 1000):
                recorder.append(entries)
        trimming = Trimming(url, run, self.log.log_id)
        trimming.trim(ended - 10)
        trimming.close()

    def context(self, service: str, folder: Path) -> ServiceContext:
        return make_context(RunPlace(self.url, self.run, folder), ServiceSpec(service), read_plan(self.url, self.run, folder), "code")

    def end(self) -> None:
        self.log.append(Producer("operator", 0), [Draft(RunEnded(reason="stopped"), derived=False, cause=0, at=1)])

    def everything(self) -> list[Entry]:
        with History.open(self.url, self.run, self.archived) as history:
            return list(history.entries(0, history.last_position()))


@pytest.fixture
def late(redis_url: str, run: str, tmp_path: Path) -> Run:
    return Run(redis_url, run, tmp_path)


def policy() -> Core:
    return PolicyCore(create("default", {}))


MAKERS: dict[str, Callable[[], Core]] = {"controller": ControllerCore, "policy": policy}


def serve_to_the_end(run: Run, service: str, folder: Path) -> tuple[Core, int]:
    """Runs a service with nothing to perform until the run has ended; its core then, and how far that was."""
    core = MAKERS[service]()
    shell = Shell(run.context(service, folder), core, Idle())
    thread = threading.Thread(target=shell.run)
    thread.start()
    run.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return core, shell.position


@pytest.mark.parametrize("service", MAKERS)
def test_a_service_recovers_from_the_recording_and_then_the_stream(late: Run, service: str) -> None:
    core, position = serve_to_the_end(late, service, late.archived)
    told = MAKERS[service]()
    rebuild(told, late.everything()[:position])
    assert freeze(core) == freeze(told)


@pytest.mark.parametrize("service", MAKERS)
def test_a_service_on_another_host_recovers_through_the_archiver(late: Run, service: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with Recalling(late.url, late.run, late.archived):
        core, position = serve_to_the_end(late, service, elsewhere)
    told = MAKERS[service]()
    rebuild(told, late.everything()[:position])
    assert freeze(core) == freeze(told)


def test_a_service_tells_how_far_it_has_got_at_its_end(late: Run) -> None:
    _, position = serve_to_the_end(late, "controller", late.archived)
    trimming = Trimming(late.url, late.run, late.log.log_id)
    assert trimming.positions() == {"controller": position}
    trimming.close()


def test_the_plan_is_read_wherever_it_is(late: Run, tmp_path: Path) -> None:
    assert isinstance(read_plan(late.url, late.run, late.archived), RunPlanned)
    with Recalling(late.url, late.run, late.archived):
        assert read_plan(late.url, late.run, tmp_path / "elsewhere").run == late.run
