"""What Ray's errors mean for whoever asked."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from services.launcher.on_ray.remote import Failed, Gone, Outcome, Said, Unclear, outcome_of

pytest.importorskip("ray", reason="Ray is not installed")


def outcome(error: BaseException) -> Outcome:
    future: Future[str] = Future()
    future.set_exception(error)
    return outcome_of(future)


def test_an_answer_is_one() -> None:
    future: Future[str] = Future()
    future.set_result("yes")
    assert outcome_of(future) == Said("yes")


def test_an_actor_that_cannot_be_reached_may_live_and_one_that_died_does_not() -> None:
    from ray import exceptions

    assert isinstance(outcome(exceptions.ActorUnavailableError("no connection", None)), Unclear)
    assert isinstance(outcome(exceptions.RaySystemError("whatever")), Unclear)
    assert isinstance(outcome(exceptions.ActorDiedError()), Gone)
    assert isinstance(outcome(exceptions.OutOfMemoryError("memory")), Gone)
    assert isinstance(outcome(exceptions.ActorUnschedulableError("no such node")), Gone)
    assert outcome(exceptions.RuntimeEnvSetupError("no such package")) == Gone("Failed to set up runtime environment. no such package")


def test_what_an_actor_could_not_do_is_said_by_it() -> None:
    from ray.exceptions import RayTaskError

    error = RayTaskError("start", "a long trace", OSError("no space"))
    assert outcome(error) == Failed("OSError: no space")
