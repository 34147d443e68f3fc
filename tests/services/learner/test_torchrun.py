"""What ranks that somebody else started find out about themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.config_file import make_config
from services.context import make_context
from services.devices import Machine
from services.launcher.protocol import RunPlace, ServiceSpec
from services.learner.config import LearnerConfig
from services.learner.sharded.torchrun import INTERFACE, Torchrun, choose_interface, interface_to
from services.plan import plan_run

RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def test_a_rank_is_what_its_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*RANK_1, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Torchrun.here() is None
    for name, value in RANK_1.items():
        monkeypatch.setenv(name, value)
    assert Torchrun.here() == Torchrun(1, 2, 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    rank = Torchrun.here()
    assert rank == Torchrun(1, 2, 0)
    with pytest.raises(ConfigError, match=r"actor.ranks is 4, and 2 ranks were started"):
        rank.check(LearnerConfig(model="m", ranks=4))


def test_ranks_speak_over_the_network_that_rank_0_is_reached_by(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no-such-host.invalid") == ""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv(INTERFACE, "mine")
    choose_interface()
    assert os.environ[INTERFACE] == "mine"
    monkeypatch.delenv(INTERFACE)
    choose_interface()
    assert os.environ[INTERFACE] == "lo"


def test_each_rank_is_bound_to_its_own_of_the_trainers_cores(tmp_path: Path) -> None:
    settings = {"actor": {"ranks": 2}, "devices": {"trainer": [0, 1, 2, 3]}, "async_training": {"total_steps": 1}}
    plan = plan_run(make_config(settings, "test"), "r1", Machine((0, 1, 2, 3)))
    place = RunPlace("unix://none", "r1", tmp_path)

    def own_cores(service: str) -> list[str]:
        return [make_context(place, ServiceSpec(service, rank=rank), plan, "code").own_cores for rank in (0, 1)]

    assert own_cores("trainer") == ["0,1", "2,3"]
    assert own_cores("archiver") == ["", ""]
