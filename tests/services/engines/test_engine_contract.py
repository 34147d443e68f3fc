"""What every engine promises, whatever computes its tokens. Runs on the embedded and on the scripted engine."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import pytest

from bus.errors import ConfigError, EngineError
from services.engines.protocol import Engine, GenerateOutput, Sampling
from tests.services.engines.factories import DEADLY_TOKEN, LONG, STOPPING, VOCAB, Workshop, ask, collect, wait_for_tokens


def check_consistent(output: GenerateOutput, version: int) -> None:
    assert len(output.tokens) == len(output.logprobs) == sum(span.num_tokens for span in output.spans)
    assert all(span.version == version and span.num_tokens > 0 for span in output.spans)
    assert all(logprob <= 0 for logprob in output.logprobs)
    assert all(0 <= token < VOCAB for token in output.tokens)


def test_every_request_has_one_output_and_more_of_them_than_run_together(workshop: Workshop) -> None:
    engine = workshop.open(rows=8)
    for number in range(60):
        engine.submit(ask(f"r{number}", 5 + number % 40, tuple(range(1, 2 + number % 9)), sampling=STOPPING, seed=number))
    outputs = collect(engine, 60)
    assert engine.poll(0.05) == []
    assert set(outputs) == {f"r{number}" for number in range(60)}
    for number in range(60):
        output = outputs[f"r{number}"]
        check_consistent(output, version=1)
        assert output.outcome in ("stop", "length")
        assert (output.tokens[-1] == 7) == (output.outcome == "stop")
        assert 7 not in output.tokens[:-1]
        assert len(output.tokens) == 5 + number % 40 or output.outcome == "stop"
    assert {output.outcome for output in outputs.values()} == {"stop", "length"}
    stats = engine.stats()
    assert (stats.running, stats.queued, stats.state, stats.version) == (0, 0, "open", 1)
    assert stats.generated_tokens == sum(len(output.tokens) for output in outputs.values())


def test_no_more_requests_run_than_configured(workshop: Workshop) -> None:
    engine = workshop.open(rows=3)
    for number in range(10):
        engine.submit(ask(f"r{number}", LONG))
    wait_for_tokens(engine, 10)
    assert (engine.stats().running, engine.stats().queued) == (3, 7)


def test_an_answer_that_was_aborted_and_continued_is_the_one_of_a_single_go(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.submit(ask("whole", 300, sampling=workshop.continuing, seed=5))
    whole = collect(engine, 1)["whole"]
    engine.submit(ask("first", LONG, sampling=workshop.continuing, seed=5))
    wait_for_tokens(engine, 20)
    engine.abort(["first"])
    first = collect(engine, 1)["first"]
    assert first.outcome == "aborted"
    check_consistent(first, version=1)
    prefix = first.tokens[:200]
    engine.submit(ask("second", 300 - len(prefix), prefix=prefix, sampling=workshop.continuing, seed=5))
    second = collect(engine, 1)["second"]
    assert second.outcome == "length"
    assert prefix + second.tokens == whole.tokens
    assert first.logprobs[:200] + second.logprobs == pytest.approx(whole.logprobs, abs=1e-4)


def test_c22_an_attempt_with_an_empty_prefix_starts_over(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.submit(ask("a1", LONG, seed=3))
    wait_for_tokens(engine, 20)
    engine.abort(["a1"])
    aborted = collect(engine, 1)["a1"]
    engine.submit(ask("a2", 40, seed=3))
    again = collect(engine, 1)["a2"]
    assert len(again.tokens) == 40
    shared = min(40, len(aborted.tokens))
    assert again.tokens[:shared] == aborted.tokens[:shared]


@pytest.mark.parametrize("aborts", [1, 2, 5])
def test_c23_a_resumed_answer_never_exceeds_its_limit(workshop: Workshop, aborts: int) -> None:
    engine = workshop.open()
    limit = 900
    answer: tuple[int, ...] = ()
    for attempt in range(aborts + 1):
        engine.submit(ask(f"a{attempt}", limit - len(answer), prefix=answer, seed=9))
        if attempt < aborts:
            wait_for_tokens(engine, 5)
            engine.abort([f"a{attempt}"])
        output = collect(engine, 1)[f"a{attempt}"]
        answer += output.tokens
        if output.outcome == "length":
            break
    assert len(answer) == limit


def test_c24_sampling_is_frozen_and_comes_back_unchanged(workshop: Workshop) -> None:
    engine = workshop.open()
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, stop_token_ids=(7, 8))
    before = copy.deepcopy(sampling)
    request = ask("r", LONG, sampling=sampling)
    engine.submit(request)
    engine.submit(ask("other", 5, sampling=Sampling(temperature=0)))
    engine.abort(["r"])
    collect(engine, 2)
    assert request.sampling is sampling
    assert sampling == before
    with pytest.raises(AttributeError):
        sampling.temperature = 1.0  # type: ignore[misc]  # that is the point


def test_c25_zero_tokens_is_a_legal_output_and_resume_point(workshop: Workshop) -> None:
    engine = workshop.open(rows=1)
    engine.submit(ask("running", LONG))
    engine.submit(ask("waiting", 10))
    wait_for_tokens(engine, 1)
    engine.abort(["waiting"])
    waiting = collect(engine, 1)["waiting"]
    assert (waiting.outcome, waiting.tokens, waiting.logprobs, waiting.spans) == ("aborted", (), (), ())
    engine.abort(["running"])
    engine.submit(ask("waiting-2", 10, prefix=waiting.tokens))
    assert len(collect(engine, 2)["waiting-2"].tokens) == 10


def test_c27_submit_and_abort_in_the_same_tick_leave_nobody_running(workshop: Workshop) -> None:
    engine = workshop.open(rows=4)
    for race in range(1000):
        engine.submit(ask(f"r{race}", LONG, seed=race))
        # From "at once" to "while its first tokens are computed".
        if race % 4 == 3:
            time.sleep(race % 7 * 0.0003)
        engine.abort([f"r{race}"])
        if race % 50 == 49:
            outputs = collect(engine, 50)
            assert {output.outcome for output in outputs.values()} == {"aborted"}
            for output in outputs.values():
                check_consistent(output, version=1)
    assert engine.poll(0.05) == []
    assert (engine.stats().running, engine.stats().queued) == (0, 0)


def test_c27_aborts_from_another_thread_race_with_submits(workshop: Workshop) -> None:
    engine = workshop.open(rows=4)
    names = [f"r{number}" for number in range(300)]
    stop = threading.Event()

    def abort_again_and_again() -> None:
        while not stop.is_set():
            engine.abort(names)

    aborter = threading.Thread(target=abort_again_and_again)
    aborter.start()
    for number, name in enumerate(names):
        engine.submit(ask(name, LONG, seed=number))
    outputs = collect(engine, len(names))
    stop.set()
    aborter.join()
    assert {output.outcome for output in outputs.values()} == {"aborted"}


def test_c07_2048_requests_on_one_engine_do_not_keep_an_abort_from_being_served(workshop: Workshop) -> None:
    engine = workshop.open(rows=8)
    names = [f"r{number}" for number in range(2048)]
    for number, name in enumerate(names):
        engine.submit(ask(name, LONG, seed=number))
    wait_for_tokens(engine, 16)
    engine.abort(names)
    outputs = collect(engine, len(names))
    assert {output.outcome for output in outputs.values()} == {"aborted"}
    assert sum(bool(output.tokens) for output in outputs.values()) <= 16, "requests behind the abort were started"
    assert (engine.stats().running, engine.stats().queued) == (0, 0)


def test_c29_generation_without_weights_since_the_last_wake_is_refused(workshop: Workshop) -> None:
    engine = workshop.build()
    engine.wake()
    with pytest.raises(EngineError, match="call load_weights first"):
        engine.open()
    engine.load_weights(workshop.weights(1), 1)
    engine.open()
    engine.pause()
    engine.sleep()
    engine.wake()
    with pytest.raises(EngineError, match="call load_weights first"):
        engine.open()
    engine.submit(ask("r"))
    assert collect(engine, 1)["r"].outcome == "refused"


def test_what_is_submitted_while_not_open_is_refused(workshop: Workshop) -> None:
    engine = workshop.build()
    engine.submit(ask("asleep"))
    engine.wake()
    engine.load_weights(workshop.weights(1), 1)
    engine.submit(ask("paused"))
    outputs = collect(engine, 2)
    assert {output.outcome for output in outputs.values()} == {"refused"}
    assert "paused" in outputs["paused"].error
    assert engine.stats().running == 0


def test_pause_returns_when_everything_in_flight_has_its_output(workshop: Workshop) -> None:
    engine = workshop.open(rows=8)
    for number in range(12):
        engine.submit(ask(f"r{number}", LONG, seed=number))
    wait_for_tokens(engine, 80)
    engine.pause()
    outputs = engine.poll(0)
    assert sorted(output.request for output in outputs) == sorted(f"r{number}" for number in range(12))
    assert {output.outcome for output in outputs} == {"aborted"}
    for output in outputs:
        check_consistent(output, version=1)
    assert sum(len(output.tokens) > 0 for output in outputs) == 8
    assert (engine.stats().running, engine.stats().queued, engine.stats().state) == (0, 0, "paused")


def test_a_standalone_update_is_pause_load_open_and_spans_tell_the_version(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.submit(ask("old", LONG))
    wait_for_tokens(engine, 5)
    engine.pause()
    engine.load_weights(workshop.weights(2), 2)
    engine.open()
    old = collect(engine, 1)["old"]
    engine.submit(ask("new", 10, prefix=old.tokens[:50]))
    new = collect(engine, 1)["new"]
    check_consistent(old, version=1)
    check_consistent(new, version=2)
    assert engine.stats().version == 2


def test_after_a_pause_without_new_weights_it_opens_with_the_old_ones(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.pause()
    engine.open()
    engine.submit(ask("r"))
    check_consistent(collect(engine, 1)["r"], version=1)


def test_a_load_that_fails_leaves_the_version_and_keeps_the_engine_shut_until_one_is_complete(workshop: Workshop) -> None:
    engine = workshop.open("second_load_fails")
    engine.pause()
    with pytest.raises(EngineError):
        engine.load_weights(workshop.torn_weights(), 2)
    assert engine.stats().version == 1
    with pytest.raises(EngineError, match="call load_weights first"):
        engine.open()
    engine.submit(ask("early"))
    engine.load_weights(workshop.weights(3), 3)
    engine.open()
    engine.submit(ask("late"))
    outputs = collect(engine, 2)
    assert outputs["early"].outcome == "refused"
    check_consistent(outputs["late"], version=3)


def versions(output: GenerateOutput) -> list[int]:
    """Of its spans, once they are checked to cover the tokens."""
    assert len(output.tokens) == len(output.logprobs) == sum(span.num_tokens for span in output.spans)
    assert all(span.num_tokens > 0 for span in output.spans)
    return [span.version for span in output.spans]


def renew(engine: Engine, workshop: Workshop, version: int) -> None:
    """An update that ends nothing."""
    engine.freeze()
    engine.load_weights(workshop.weights(version), version)
    engine.open()


def test_c18_what_is_frozen_for_an_update_goes_on_and_its_spans_say_which_weights_drew_each_token(workshop: Workshop) -> None:
    engine = workshop.open(rows=8)
    for number in range(3):
        engine.submit(ask(f"r{number}", LONG, seed=number))
    for version in (2, 3, 4):
        wait_for_tokens(engine, 24)
        renew(engine, workshop, version)
    wait_for_tokens(engine, 24)
    assert engine.poll(0) == [], "an update ended a request"
    assert engine.stats().version == 4
    engine.abort(["r0", "r1", "r2"])
    for output in collect(engine, 3).values():
        assert output.outcome == "aborted"
        assert versions(output) == [1, 2, 3, 4]


def test_c27_submits_and_aborts_race_with_freezes(workshop: Workshop) -> None:
    engine = workshop.open(rows=4)
    for race in range(20):
        for number in range(6):
            engine.submit(ask(f"{race}.{number}", 2 if number == 0 else LONG, seed=number))
            time.sleep((race + number) % 5 * 0.0003)
        if race % 3 == 0:
            engine.abort([f"{race}.3"])
        engine.freeze()
        if race % 3 == 1:
            engine.abort([f"{race}.3"])
        engine.open()
        engine.abort([f"{race}.{number}" for number in range(1, 6)])
        outputs = collect(engine, 6)
        assert [outputs[f"{race}.{number}"].outcome for number in range(6)] == ["length"] + ["aborted"] * 5
        for output in outputs.values():
            check_consistent(output, version=1)
    assert (engine.stats().running, engine.stats().queued) == (0, 0)


def test_an_answer_that_was_frozen_without_other_weights_is_the_one_of_a_single_go(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.submit(ask("whole", 300, seed=5))
    whole = collect(engine, 1)["whole"]
    engine.submit(ask("frozen", 300, seed=5))
    for _ in range(3):
        wait_for_tokens(engine, 10)
        engine.freeze()
        engine.open()
    frozen = collect(engine, 1)["frozen"]
    assert frozen.tokens == whole.tokens
    assert frozen.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert versions(frozen) == [1]


def test_while_it_is_frozen_nothing_is_computed_or_admitted(workshop: Workshop) -> None:
    engine = workshop.open(rows=2)
    for number in range(4):
        engine.submit(ask(f"r{number}", LONG, seed=number))
    wait_for_tokens(engine, 10)
    engine.freeze()
    engine.freeze()
    before = engine.stats()
    engine.submit(ask("late"))
    assert collect(engine, 1)["late"].outcome == "refused"
    assert engine.poll(0.1) == []
    after = engine.stats()
    assert (after.state, after.running, after.queued, after.generated_tokens) == ("frozen", 2, 2, before.generated_tokens)
    engine.abort(["r0", "r3"])
    ended = collect(engine, 2)
    assert {output.outcome for output in ended.values()} == {"aborted"}
    assert (versions(ended["r0"]), versions(ended["r3"])) == ([1], [])
    for wrong in (engine.sleep, engine.wake):
        with pytest.raises(EngineError, match="in state frozen"):
            wrong()
    engine.pause()
    assert sorted(collect(engine, 2)) == ["r1", "r2"]
    with pytest.raises(EngineError, match="freeze in state paused"):
        engine.freeze()


def test_c28_what_waited_while_it_was_frozen_starts_with_the_new_weights_alone(workshop: Workshop) -> None:
    engine = workshop.open(rows=1)
    prompt = tuple(number % 30 + 1 for number in range(300))
    engine.submit(ask("first", LONG - 300, prompt, seed=1))
    engine.submit(ask("second", 20, prompt, seed=1))
    wait_for_tokens(engine, 5)
    renew(engine, workshop, 2)
    engine.abort(["first"])
    second = collect(engine, 2)["second"]
    assert versions(second) == [2]
    engine.pause()
    engine.load_weights(workshop.weights(2), 2)
    engine.open()
    engine.submit(ask("fresh", 20, prompt, seed=1))
    fresh = collect(engine, 1)["fresh"]
    assert second.tokens == fresh.tokens
    assert second.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


def test_pause_and_close_end_what_is_frozen_with_what_it_has(workshop: Workshop) -> None:
    engine = workshop.open(rows=8)
    for end in (engine.pause, engine.close):
        for number in range(3):
            engine.submit(ask(f"r{number}", LONG, seed=number))
        wait_for_tokens(engine, 20)
        renew(engine, workshop, 2)
        wait_for_tokens(engine, 20)
        engine.freeze()
        end()
        outputs = engine.poll(0)
        assert {output.outcome for output in outputs} == {"aborted"}
        assert [versions(output)[-1] for output in outputs] == [2, 2, 2]
        if end == engine.pause:
            engine.load_weights(workshop.weights(1), 1)
            engine.open()


def test_c19_a_load_that_fails_ends_nothing_that_is_frozen_and_a_complete_one_lets_it_go_on(workshop: Workshop) -> None:
    engine = workshop.open("second_load_fails")
    engine.submit(ask("r", LONG))
    wait_for_tokens(engine, 20)
    engine.freeze()
    with pytest.raises(EngineError):
        engine.load_weights(workshop.torn_weights(), 2)
    assert (engine.stats().version, engine.stats().state) == (1, "frozen")
    with pytest.raises(EngineError, match="call load_weights first"):
        engine.open()
    assert engine.poll(0.05) == []
    engine.load_weights(workshop.weights(3), 3)
    engine.open()
    wait_for_tokens(engine, 20)
    engine.abort(["r"])
    assert versions(collect(engine, 1)["r"]) == [1, 3]


def test_c40_a_crash_is_an_error_for_all_in_flight_and_for_every_later_call(workshop: Workshop) -> None:
    engine = workshop.open("crashes_on_deadly_token")
    for number in range(3):
        engine.submit(ask(f"r{number}", LONG))
    wait_for_tokens(engine, 5)
    engine.submit(ask("deadly", LONG, prompt=(1, DEADLY_TOKEN)))
    outputs = collect(engine, 4)
    assert {output.outcome for output in outputs.values()} == {"error"}
    assert all(output.tokens == () and output.error for output in outputs.values())
    later: list[Callable[[], object]] = [
        lambda: engine.poll(1),
        lambda: engine.submit(ask("later")),
        lambda: engine.abort(["r0"]),
        engine.pause,
        engine.freeze,
        engine.open,
        engine.sleep,
        engine.wake,
        lambda: engine.load_weights(workshop.weights(2), 2),
    ]
    for call in later:
        with pytest.raises(EngineError, match="has failed"):
            call()
    assert engine.stats().running == 0
    engine.close()


@pytest.mark.parametrize(
    ("prompt", "prefix", "new", "message"),
    [
        ((), (), 5, "at least 1"),
        ((1,), (), 0, "at least 1"),
        (tuple([1] * 40), tuple([2] * 20), 5, "max_model_len is 64"),
        ((1, VOCAB), (), 5, "token ids"),
        ((1,), (-1,), 5, "token ids"),
    ],
)
def test_what_can_never_be_served_ends_in_error_with_the_numbers(
    workshop: Workshop, prompt: tuple[int, ...], prefix: tuple[int, ...], new: int, message: str
) -> None:
    engine = workshop.open(max_model_len=64)
    engine.submit(ask("bad", new, prompt, prefix))
    engine.submit(ask("good", 24, tuple([1] * 40)))
    outputs = collect(engine, 2)
    assert outputs["bad"].outcome == "error"
    assert message in outputs["bad"].error
    assert outputs["good"].outcome == "length"


@pytest.mark.parametrize("numbers", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_sampling_out_of_range_is_refused_where_it_is_made(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="temperature must be at least 0"):
        Sampling(**numbers)  # type: ignore[arg-type]  # mypy cannot see which names


def test_an_id_in_flight_is_not_taken_twice_but_may_come_again_later(workshop: Workshop) -> None:
    engine = workshop.open()
    engine.submit(ask("r", LONG))
    with pytest.raises(EngineError, match="while in flight"):
        engine.submit(ask("r", LONG))
    engine.abort(["r", "unknown"])
    assert collect(engine, 1)["r"].outcome == "aborted"
    engine.submit(ask("r", 3))
    assert collect(engine, 1)["r"].outcome == "length"


def test_asking_for_the_state_it_is_in_does_nothing_and_wrong_calls_are_refused(workshop: Workshop) -> None:
    engine = workshop.build()
    engine.sleep()
    for wrong in (engine.open, engine.pause, engine.freeze, lambda: engine.load_weights(workshop.weights(1), 1)):
        with pytest.raises(EngineError, match="in state asleep"):
            wrong()
    engine.wake()
    engine.wake()
    engine.pause()
    engine.load_weights(workshop.weights(1), 1)
    engine.open()
    engine.open()
    for wrong in (engine.sleep, engine.wake, lambda: engine.load_weights(workshop.weights(1), 1)):
        with pytest.raises(EngineError, match="in state open"):
            wrong()
    engine.submit(ask("r"))
    assert collect(engine, 1)["r"].outcome == "length"
    with pytest.raises(EngineError, match="started twice"):
        engine.start()


def test_poll_waits_no_longer_than_asked_and_wakes_for_an_output_of_another_thread(workshop: Workshop) -> None:
    engine = workshop.open()
    begun = time.monotonic()
    assert engine.poll(0.05) == []
    assert time.monotonic() - begun < 5
    found: list[GenerateOutput] = []
    poller = threading.Thread(target=lambda: found.extend(engine.poll(30)))
    poller.start()
    engine.submit(ask("r", 3))
    poller.join(30)
    assert [output.request for output in found] == ["r"]


def test_close_aborts_what_is_in_flight_and_ends_the_engine(workshop: Workshop) -> None:
    engine = workshop.open(rows=2)
    for number in range(4):
        engine.submit(ask(f"r{number}", LONG))
    wait_for_tokens(engine, 5)
    engine.close()
    engine.close()
    outputs = engine.poll(0)
    assert {output.outcome for output in outputs} == {"aborted"}
    assert len(outputs) == 4
    for call in (lambda: engine.poll(0), lambda: engine.submit(ask("late")), engine.wake, engine.pause):
        with pytest.raises(EngineError, match="closed"):
            call()
    assert not [thread for thread in threading.enumerate() if thread.name == "generation"]


def test_a_hundred_swings_lose_nothing(workshop: Workshop) -> None:
    engine: Engine = workshop.build()
    weights = workshop.weights(1)
    for swing in range(100):
        engine.wake()
        engine.load_weights(weights, swing)
        engine.open()
        for number in range(5):
            engine.submit(ask(f"{swing}-{number}", 3 if number == 0 else LONG, seed=number))
        engine.pause()
        engine.sleep()
        outputs = engine.poll(0)
        assert len(outputs) == 5
        for output in outputs:
            check_consistent(output, version=swing)
    assert engine.stats().state == "asleep"
