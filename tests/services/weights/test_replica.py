"""Weights that come as what changed, through a replica's shell, with a real server for the log and a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bus.events import ReplicaAsleep, ReplicaAwake, WeightsApplied
from services.engines.config import EngineConfig
from services.engines.script import Fault, Operation, Script, varying_length
from services.engines.scripted import ScriptedEngine
from services.weights.store import WeightNotice, WeightStore
from tests.services.director import Director


@pytest.fixture
def notices(run: str, tmp_path: Path) -> list[WeightNotice]:
    """Versions 0 to 4, each with a hundredth of the elements changed; all stay where they are."""
    store, weights, published = WeightStore(run, "file", tmp_path / "published", delta="auto"), {"w": torch.zeros(20_000)}, []
    for version in range(5):
        published.append(store.publish(weights, version, 0, 1))
        weights = {"w": weights["w"].clone()}
        weights["w"][version::100] += 1
    return published


@contextmanager
def serving(director: Director, name: str, faults: Mapping[Operation, Fault] | None = None) -> Iterator[None]:
    script = Script(varying_length(5, 9), tokens_per_second=2000, faults=faults or {})
    engine = ScriptedEngine(EngineConfig(kind="scripted", max_running_requests=4, max_model_len=64), script)
    with director.serving(name, engine, slots=6):
        yield


def test_what_came_is_said_of_updates_and_of_wakes_and_a_replica_that_lags_takes_the_whole(
    director: Director, notices: list[WeightNotice]
) -> None:
    name, said = director.hybrid, []
    with serving(director, name):
        for swing, version in enumerate((0, 1, 3, 4), start=1):
            awake = director.outcome(director.wake(name, swing, notices[version]), ReplicaAwake)
            said.append((awake.version, awake.transport, awake.num_bytes))
            director.outcome(director.sleep(name), ReplicaAsleep)
    whole = notices[0].num_bytes
    deltas = {notice.version: notice.delta.num_bytes for notice in notices if notice.delta is not None}
    assert said == [(0, "file", whole), (1, "delta", deltas[1]), (3, "file", whole), (4, "delta", deltas[4])]


def test_c19_a_failed_update_leaves_the_version_and_the_replica_is_set_aside_until_it_began_again_and_was_synced_in_full(
    director: Director, notices: list[WeightNotice]
) -> None:
    """C-19."""
    name = director.standalone
    with serving(director, name, {"load_weights": Fault("fail", call=3)}):
        for version, way in ((0, "file"), (1, "delta")):
            assert director.outcome(director.update(name, notices[version]), WeightsApplied).transport == way
        director.update(name, notices[2])
        assert director.failure(name).during == "update"
        after = director.update(name, notices[2])
        (refused,) = director.finished(director.ask(name, 1, 5))
        assert refused.outcome == "refused"
        assert after not in director.outcomes, "it takes no weights any more, and so is of no version but the one before"


def test_c19_the_next_incarnation_of_a_replica_begins_with_the_whole_weights(director: Director, notices: list[WeightNotice]) -> None:
    """C-19."""
    name = director.standalone
    with serving(director, name):
        applied = director.outcome(director.update(name, notices[2]), WeightsApplied)
        assert (applied.transport, applied.num_bytes) == ("file", notices[2].num_bytes)
        assert director.outcome(director.update(name, notices[3]), WeightsApplied).transport == "delta"
