"""The scripted engine keeps its script: speed, lengths, and failures where they are written."""

from __future__ import annotations

import threading

import pytest

from bus.errors import EngineError
from services.engines.config import EngineConfig
from services.engines.protocol import GenerateRequest
from services.engines.script import Fault, Operation, Script, varying_length
from services.engines.scripted import ScriptedEngine
from tests.services.engines.factories import ask


class Clock:
    """Time that moves when it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def build(clock: Clock, rows: int = 2, length: int = 1000, **script: object) -> ScriptedEngine:
    config = EngineConfig(kind="scripted", max_running_requests=rows, max_model_len=2000)
    engine = ScriptedEngine(config, Script(lambda _: length, tokens_per_second=10, **script), clock)  # type: ignore[arg-type]  # as given
    engine.start()
    return engine


def open_engine(engine: ScriptedEngine) -> ScriptedEngine:
    engine.wake()
    engine.load_weights({}, 1)
    engine.open()
    return engine


def test_answers_come_at_the_scripted_speed_and_in_the_order_of_time() -> None:
    clock = Clock()
    engine = open_engine(build(clock))
    engine.submit(ask("long", 20))
    engine.submit(ask("short", 5))
    engine.submit(ask("queued", 10))
    clock.now += 0.49
    assert engine.poll(0) == []
    assert (engine.stats().running, engine.stats().queued, engine.stats().generated_tokens) == (2, 1, 8)
    clock.now += 0.02
    assert [output.request for output in engine.poll(0)] == ["short"]
    # The queued one started when the short one ended, at 0.5 s, though nobody looked just then; so it ends at 1.5 s.
    clock.now = 101.49
    assert engine.poll(0) == []
    clock.now = 105.0
    assert [(output.request, len(output.tokens)) for output in engine.poll(0)] == [("queued", 10), ("long", 20)]


def test_an_abort_returns_what_there_is_by_then() -> None:
    clock = Clock()
    engine = open_engine(build(clock))
    engine.submit(ask("r", 500))
    clock.now += 3.25
    engine.abort(["r"])
    (output,) = engine.poll(0)
    assert (output.outcome, len(output.tokens)) == ("aborted", 32)


def test_an_answer_stops_at_its_length_whatever_the_number_of_attempts() -> None:
    clock = Clock()
    engine = open_engine(build(clock, length=30))
    engine.submit(ask("a1", 100))
    clock.now += 1.0
    engine.abort(["a1"])
    (first,) = engine.poll(0)
    engine.submit(ask("a2", 90, prefix=first.tokens))
    clock.now += 10
    (second,) = engine.poll(0)
    assert (first.outcome, second.outcome, len(first.tokens) + len(second.tokens)) == ("aborted", "stop", 30)


def test_varying_lengths_depend_on_the_answer_not_on_the_attempt() -> None:
    length = varying_length(5, 50)
    lengths = [length(ask("r", seed=seed)) for seed in range(200)]
    assert lengths == [length(ask("again", 3, prefix=(1, 2), seed=seed)) for seed in range(200)]
    assert min(lengths) == 5
    assert max(lengths) == 50


@pytest.mark.parametrize("operation", ["wake", "load_weights", "open", "pause", "sleep"])
def test_c31_c09_an_operation_that_fails_raises_and_leaves_the_state(operation: Operation) -> None:
    engine = build(Clock(), faults={operation: Fault("fail")})
    states = {"wake": "asleep", "load_weights": "paused", "open": "paused", "pause": "open", "sleep": "paused"}
    calls = {
        "wake": engine.wake,
        "load_weights": lambda: engine.load_weights({}, 1),
        "open": engine.open,
        "pause": engine.pause,
        "sleep": engine.sleep,
    }
    for name, call in calls.items():
        if name == operation:
            with pytest.raises(EngineError, match=f"call 1 of {operation} failed"):
                call()
            assert engine.stats().state == states[name]
        call()
    assert engine.stats().state == "asleep"


def test_a_start_that_fails_leaves_an_engine_that_can_be_started() -> None:
    engine = ScriptedEngine(EngineConfig(), Script(lambda _: 5, 10, faults={"start": Fault("fail")}))
    with pytest.raises(EngineError, match="call 1 of start failed"):
        engine.start()
    with pytest.raises(EngineError, match="call start first"):
        engine.wake()
    engine.start()


@pytest.mark.parametrize("operation", ["wake", "load_weights", "pause", "sleep"])
def test_c09_an_operation_that_hangs_returns_only_when_the_engine_is_closed(operation: Operation) -> None:
    engine = build(Clock(), faults={operation: Fault("hang")})
    failures: list[str] = []

    def swing() -> None:
        try:
            open_engine(engine)
            engine.submit(ask("r", 500))
            engine.pause()
            engine.sleep()
        except EngineError as error:
            failures.append(str(error))

    swinger = threading.Thread(target=swing)
    swinger.start()
    swinger.join(0.1)
    assert swinger.is_alive()
    engine.stats()
    engine.close()
    swinger.join(10)
    assert not swinger.is_alive()
    assert "closed" in failures[0]


def test_a_fault_comes_at_its_call_only() -> None:
    engine = build(Clock(), faults={"wake": Fault("fail", call=2)})
    for call in range(1, 4):
        if call == 2:
            with pytest.raises(EngineError, match="call 2 of wake failed"):
                engine.wake()
            continue
        engine.wake()
        engine.sleep()


def test_generation_that_hangs_brings_no_more_tokens_until_it_is_aborted() -> None:
    clock = Clock()
    engine = open_engine(build(clock, faults={"generate": Fault("hang", call=2)}))
    engine.submit(ask("first", 50))
    clock.now += 1
    engine.submit(ask("second", 50))
    clock.now += 100
    assert engine.poll(0) == []
    engine.pause()
    assert {output.request: len(output.tokens) for output in engine.poll(0)} == {"first": 10, "second": 0}


def test_operations_take_their_time() -> None:
    engine = ScriptedEngine(EngineConfig(), Script(lambda _: 5, 1000, seconds={"wake": 0.2}))
    engine.start()
    waker = threading.Thread(target=engine.wake)
    waker.start()
    waker.join(0.02)
    assert engine.stats().state == "asleep"
    waker.join(10)
    assert engine.stats().state == "paused"


def test_poll_in_real_time_returns_when_the_next_answer_ends() -> None:
    def length(request: GenerateRequest) -> int:
        return 10 if request.request == "short" else 10_000

    engine = ScriptedEngine(EngineConfig(max_model_len=20_000), Script(length, 1000))
    engine.start()
    open_engine(engine)
    engine.submit(ask("long", 10_000))
    engine.submit(ask("short", 100))
    assert [output.request for output in engine.poll(5)] == ["short"]
