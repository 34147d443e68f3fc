"""C-07, C-09, C-18, C-19, C-31, C-34, C-39 and C-40 through a replica's shell, with a real server for the log and the real vLLM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.alive import living_epochs
from bus.connection import Connection
from bus.events import GenerationFinished, ReplicaAsleep, ReplicaAwake, ReplicaFailed, WeightsApplied
from services.engines.config import EngineConfig
from services.engines.protocol import Engine
from services.engines.vllm import VllmEngine
from services.engines.vllm_server import VllmServer
from services.weights.store import WeightNotice, WeightStore
from tests.services.director import Director
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, random_model, wait_for_tokens, weights_of
from tests.services.engines.vllm_factories import vllm_model

pytestmark = NEEDS_VLLM

ROWS = 8

Build = Callable[..., Engine]
Publish = Callable[..., WeightNotice]


@pytest.fixture
def build(vllm_server: VllmServer, tmp_path: Path) -> Build:
    """A new engine around the one vLLM."""
    vllm_model(VOCAB).save_pretrained(tmp_path)

    def built(**changes: object) -> Engine:
        config = EngineConfig.model_validate({"kind": "vllm", "max_running_requests": ROWS, "max_model_len": LONG + 96, **changes})
        return VllmEngine(config, tmp_path, server=vllm_server)

    return built


@pytest.fixture
def publish(run: str, tmp_path: Path) -> Iterator[Publish]:
    """Publishes weights of a version; `torn`: one is missing."""
    store = WeightStore(run, "file", tmp_path / "published")

    def published(version: int, *, torn: bool = False) -> WeightNotice:
        weights = weights_of(random_model(vllm_model(VOCAB), version))
        # Another name of the embeddings.
        del weights["lm_head.weight"]
        if torn:
            del weights["model.norm.weight"]
        return store.publish(weights, version, 0, 1)

    yield published
    store.purge()


def outcomes(finished: list[GenerationFinished]) -> set[str]:
    return {event.outcome for event in finished}


def test_c31_and_c34_whole_swings_with_requests_before_during_and_after_lose_none(
    director: Director, build: Build, publish: Publish
) -> None:
    engine, name = build(), director.hybrid
    with director.serving(name, engine, ROWS):
        for swing in (1, 2):
            notice = publish(swing)
            # Behind the last swing's end, or ahead of the first: with the number of a swing that does not run.
            early = director.ask(name, 5, LONG)
            woken = director.wake(name, swing, notice)
            served = director.ask(name, 12, LONG)
            short = director.ask(name, 3, 2)
            assert director.outcome(woken, ReplicaAwake).version == swing
            assert outcomes(director.finished(early)) == {"refused"}
            wait_for_tokens(engine, 4 * ROWS)
            director.abort(name)
            asleep = director.sleep(name)
            late = [position for _ in range(20) for position in director.ask(name, 5, LONG)]
            director.outcome(asleep, ReplicaAsleep)
            ended = director.finished([*served, *short])
            assert outcomes(ended) <= {"aborted", "length"}
            assert {version for event in ended for version, _ in event.version_spans} == {swing}
            # Every one of those in flight has its outcome in the log before the replica says that it sleeps.
            said = director.outcomes[asleep][0].position
            assert all(director.outcomes[position][0].position < said for position in [*served, *short])
            assert outcomes(director.finished(late)) <= {"aborted", "refused"}
            assert engine.stats().state == "asleep"
        assert not director.failures


def test_c18_weights_change_during_an_answer_and_its_spans_are_what_the_engine_says(
    director: Director, build: Build, publish: Publish
) -> None:
    engine, name = build(), director.standalone
    with director.serving(name, engine, ROWS):
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        first = director.ask(name, 4, LONG)
        wait_for_tokens(engine, 40)
        applied = director.update(name, publish(2))
        assert director.outcome(applied, WeightsApplied).version == 2
        for old in director.finished(first):
            assert old.outcome == "aborted"
            assert old.version_spans == ((1, old.num_tokens),)
            assert old.blob is not None
            (again,) = director.finished(director.ask(name, 1, 7, prefix=old.blob))
            assert again.version_spans == ((1, old.num_tokens), (2, 7))
            answer = director.answer(again)
            assert answer.tokens[: old.num_tokens] == director.answer(old).tokens
            assert len(answer.logprobs) == len(answer.tokens) == old.num_tokens + 7


def test_c19_weights_that_are_not_whole_change_no_version_and_set_the_replica_aside(
    director: Director, build: Build, publish: Publish
) -> None:
    engine, name = build(), director.standalone
    with director.serving(name, engine, ROWS):
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        running = director.ask(name, 3, LONG)
        wait_for_tokens(engine, 10)
        torn = director.update(name, publish(2, torn=True))
        failed = director.outcome(torn, ReplicaFailed)
        assert failed.during == "update"
        assert "model.norm.weight" in failed.error
        assert engine.stats().version == 1
        assert outcomes(director.finished(running)) == {"aborted"}
        whole = director.update(name, publish(3))
        assert outcomes(director.finished(director.ask(name, 2, 5))) == {"refused"}
        assert whole not in director.outcomes


def test_c39_a_slow_first_request_is_no_death(
    director: Director, build: Build, publish: Publish, vllm_server: VllmServer, redis_url: str, run: str
) -> None:
    engine, name = build(), director.standalone
    core = vllm_server.pids[0]
    with director.serving(name, engine, ROWS):
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        os.kill(core, signal.SIGSTOP)
        try:
            first = director.ask(name, 1, 5)
            time.sleep(0.5)
            assert first[0] not in director.outcomes
            connection = Connection(redis_url)
            assert living_epochs(connection, run, [f"replica:{name}"]) == {f"replica:{name}": director.epochs[name]}
            connection.close()
        finally:
            os.kill(core, signal.SIGCONT)
        assert outcomes(director.finished(first)) == {"length"}
        assert not director.failures


def test_c09_an_engine_that_does_not_pause_in_time_is_a_failed_replica_never_one_asleep(
    director: Director, build: Build, publish: Publish, vllm_server: VllmServer
) -> None:
    engine, name = build(pause_timeout_s=0.5), director.hybrid
    core = vllm_server.pids[0]
    with director.serving(name, engine, ROWS):
        director.outcome(director.wake(name, 1, publish(1)), ReplicaAwake)
        running = director.ask(name, 3, LONG)
        wait_for_tokens(engine, 10)
        os.kill(core, signal.SIGSTOP)
        try:
            failed = director.outcome(director.sleep(name), ReplicaFailed)
        finally:
            os.kill(core, signal.SIGCONT)
        assert failed.during == "sleep"
        assert "has not ended after 0.5 s" in failed.error
        assert outcomes(director.finished(running)) == {"error"}
        again = director.sleep(name)
        assert outcomes(director.finished(director.ask(name, 1, 5))) == {"refused"}
        assert again not in director.outcomes


def test_c40_what_vllm_itself_refuses_is_an_error_of_that_request_alone(director: Director, build: Build, publish: Publish) -> None:
    """The engine was told of more room than vLLM has."""
    engine, name = build(max_model_len=8192), director.standalone
    with director.serving(name, engine, ROWS):
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        good = director.ask(name, 3, 50)
        (bad,) = director.finished(director.ask(name, 1, 5, prompt=[1] * 5000))
        assert bad.outcome == "error"
        assert "4096" in bad.error
        assert (bad.num_tokens, bad.blob, bad.version_spans) == (0, None, ())
        assert outcomes(director.finished(good)) == {"length"}
        assert not director.failures


def test_c07_an_abort_of_2048_requests_leaves_each_with_its_outcome(
    director: Director, build: Build, publish: Publish, vllm_server: VllmServer
) -> None:
    """The core stands still meanwhile: none of them can have come to its own end before a crowded machine gets to the abort."""
    engine, name = build(), director.standalone
    core = vllm_server.pids[0]
    with director.serving(name, engine, ROWS):
        director.outcome(director.update(name, publish(1)), WeightsApplied)
        asked = director.ask(name, ROWS, LONG)
        wait_for_tokens(engine, 10)
        os.kill(core, signal.SIGSTOP)
        try:
            asked += director.ask(name, 2048 - ROWS, LONG)
            director.abort(name)
            ended = director.finished(asked)
        finally:
            os.kill(core, signal.SIGCONT)
        assert outcomes(ended) == {"aborted"}
        assert 0 < sum(event.num_tokens > 0 for event in ended) <= ROWS
        assert (engine.stats().running, engine.stats().queued) == (0, 0)
        assert outcomes(director.finished(director.ask(name, 2 * ROWS, 5))) == {"length"}
