"""Updates that end nothing, through a replica's shell, with a real server for the log and a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bus.events import ReplicaFailed, WeightsApplied
from services.engines.config import EngineConfig
from services.engines.protocol import Engine
from services.engines.script import Fault, Operation, Script
from services.engines.scripted import ScriptedEngine
from services.weights.store import WeightNotice, WeightStore
from tests.services.director import Director
from tests.services.engines.factories import wait_for_tokens

LONG = 100_000
Publish = Callable[[int], WeightNotice]


@pytest.fixture
def publish(run: str, tmp_path: Path) -> Iterator[Publish]:
    store = WeightStore(run, "file", tmp_path / "published")
    yield lambda version: store.publish({"weight": torch.full((4,), float(version))}, version, 0, 1)
    store.purge()


@contextmanager
def serving(director: Director, faults: Mapping[Operation, Fault] | None = None) -> Iterator[Engine]:
    """A standalone replica that runs up to four answers, none of which comes to its end by itself."""
    script = Script(lambda _: LONG, tokens_per_second=2000, faults=faults or {})
    engine = ScriptedEngine(EngineConfig(kind="scripted", max_running_requests=4, max_model_len=131_072), script)
    with director.serving(director.standalone, engine, slots=6):
        yield engine


def test_c18_an_answer_lives_through_three_updates_and_says_which_weights_drew_what(director: Director, publish: Publish) -> None:
    name = director.standalone
    with serving(director) as engine:
        director.outcome(director.update(name, publish(1), "keep"), WeightsApplied)
        asked = director.ask(name, 5, LONG)
        for version in (2, 3, 4):
            wait_for_tokens(engine, 20)
            assert director.outcome(director.update(name, publish(version), "keep"), WeightsApplied).version == version
        assert not director.outcomes.keys() & set(asked)
        wait_for_tokens(engine, 20)
        director.abort(name)
        *running, queued = director.finished(asked)
        assert [version for event in running for version, _ in event.version_spans] == [1, 2, 3, 4] * 4
        assert queued.version_spans == ()
        for event in running:
            assert event.outcome == "aborted"
            assert sum(tokens for _, tokens in event.version_spans) == event.num_tokens == len(director.answer(event).tokens)
        assert not director.failures


def test_an_update_that_aborts_still_ends_all_of_it(director: Director, publish: Publish) -> None:
    name = director.standalone
    with serving(director) as engine:
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        asked = director.ask(name, 3, LONG)
        wait_for_tokens(engine, 20)
        applied = director.update(name, publish(2), "abort")
        director.outcome(applied, WeightsApplied)
        assert {event.version_spans for event in director.finished(asked)} == {
            ((1, event.num_tokens),) for event in director.finished(asked)
        }
        assert all(director.outcomes[position][0].position < director.outcomes[applied][0].position for position in asked)


@pytest.mark.parametrize("operation", ["load_weights", "freeze"])
def test_c19_when_an_update_fails_what_was_kept_goes_elsewhere_before_the_replica_says_so(
    director: Director, publish: Publish, operation: Operation
) -> None:
    name = director.standalone
    with serving(director, {operation: Fault("fail", call=1 if operation == "freeze" else 2)}) as engine:
        director.outcome(director.update(name, publish(1), "keep"), WeightsApplied)
        asked = director.ask(name, 3, LONG)
        wait_for_tokens(engine, 20)
        torn = director.update(name, publish(2), "keep")
        assert director.outcome(torn, ReplicaFailed).during == "update"
        for position, event in zip(asked, director.finished(asked), strict=True):
            assert event.outcome == "aborted"
            assert event.version_spans == ((1, event.num_tokens),)
            assert director.outcomes[position][0].position < director.outcomes[torn][0].position
