"""The supervisor over actors of a real cluster, with a real server: which incarnation is whose, and nobody waits for Ray."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.events import KillRequested, ServiceLost, ServiceStarted
from bus.redis_log import RedisLog
from services.launcher.on_ray.launcher import RayLauncher
from services.launcher.protocol import RunPlace, ServiceSpec
from services.launcher.supervisor import Supervisor
from tests.clusters import ThreeNodes
from tests.services.launcher.on_ray.connected import anywhere, connected
from tests.services.launcher.test_launcher import PLAN, QUICK

BEHAVIOURS = {"controller": "kill_replica", "replica:h0": "hang_first"}


def test_a_replica_on_a_cluster_is_killed_lost_and_comes_back_and_nobody_waits_for_ray(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = RunPlace(redis_url, run, tmp_path)
    log = RedisLog.create(redis_url, PLAN.model_copy(update={"run": run}), 0)
    entries: list[Entry] = []

    def command(spec: ServiceSpec) -> list[str]:
        return [sys.executable, "-m", "tests.services.stand_in", run, spec.source, BEHAVIOURS[spec.source], spec.token]

    def watch(new: Sequence[Entry]) -> None:
        entries.extend(new)

    with connected(three_nodes.address), RayLauncher(place, anywhere("controller", "replica"), None, command) as launcher:
        _forbid_waiting(monkeypatch)
        with Supervisor(place, log, launcher, QUICK, watch) as supervisor:
            outcome = supervisor.run([ServiceSpec("controller"), ServiceSpec("replica", "h0")])
    log.close()
    assert outcome.reason == "completed"
    told = [entry.event for entry in entries if entry.source in ("supervisor", "replica:h0") or isinstance(entry.event, KillRequested)]
    assert [event.kind for event in told] == ["RunPlanned", "ServiceStarted", "KillRequested", "ServiceLost", "ServiceStarted"]
    (lost,) = [event for event in told if isinstance(event, ServiceLost)]
    assert (lost.service, lost.epoch, lost.restarting) == ("replica:h0", 1, True)
    assert lost.detail.startswith("signal 9 on ")
    tokens = [event.token for event in told if isinstance(event, ServiceStarted)]
    assert len(set(tokens)) == 2


def _forbid_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on whoever waits for an answer of Ray's fails."""
    import ray

    def waits(*_: object, **__: object) -> None:
        raise AssertionError("somebody waits for Ray")

    monkeypatch.setattr(ray, "get", waits)
    monkeypatch.setattr(ray, "wait", waits)
