"""Logs that say of weights and answers what cannot be are found by the invariants."""

from __future__ import annotations

from typing import Literal

import pytest

from bus.entry import Entry
from bus.events import (
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaLost,
    WeightsApplied,
    WeightUpdateRequested,
)
from replay.update_invariants import UpdateInvariants


def update(version: int, mode: Literal["abort", "keep"] = "keep") -> list[Event]:
    asked = WeightUpdateRequested(replica="s0", epoch=1, version=version, revision=0, uri="", digest="", mode=mode)
    return [asked, WeightsApplied(replica="s0", version=version, revision=0, seconds=0.0)]


def asked(prefix_tokens: int = 0) -> GenerationRequested:
    return GenerationRequested(
        request="3.0", attempt=1, replica="s0", epoch=1, swing=0, sample=3, answer=0, max_new_tokens=9, prefix_tokens=prefix_tokens
    )


def ended(*spans: tuple[int, int]) -> GenerationFinished:
    return GenerationFinished(
        request="3.0", attempt=1, replica="s0", outcome="stop", num_tokens=sum(count for _, count in spans), version_spans=spans
    )


def broken(*events: Event) -> list[str]:
    fold = UpdateInvariants()
    entries = [Entry(at, "replica:s0", 1, False, 0, 0, "", event) for at, event in enumerate(events, 1)]
    return [what for entry in entries for what in fold.apply(entry)]


@pytest.mark.parametrize(
    "events",
    [
        [*update(1), asked(), *update(2), *update(3), ended((1, 2), (2, 5), (3, 1))],
        [*update(1), asked(), *update(2), ended((2, 4))],
        [*update(1), *update(2), asked(prefix_tokens=3), ended((0, 2), (1, 1), (2, 4))],
        [*update(1), asked(), ended((1, 2)), *update(2, "abort")],
        [*update(1), asked(), ReplicaLost(replica="s0", epoch=1), *update(2, "abort"), ended((7, 1))],
        [*update(1), ReplicaLost(replica="s0", epoch=1), asked(), ended((1, 1))],
        [*update(1), asked(), *update(2), ended((1, 1)), ended((9, 1))],
    ],
    ids=[
        "over two updates",
        "nothing before the update",
        "a prefix from elsewhere",
        "ended in time",
        "lost",
        "asked when it was lost",
        "a second outcome",
    ],
)
def test_what_can_be_is_no_fault(events: list[Event]) -> None:
    assert broken(*events) == []


def test_c18_tokens_of_weights_that_the_replica_did_not_have_meanwhile_are_found() -> None:
    assert broken(*update(1), *update(2), asked(), *update(3), ended((1, 2), (3, 1), (4, 1))) == [
        "3.0 has tokens of weights [1, 4], its replica s0 had [2, 3] meanwhile"
    ]
    assert broken(*update(1), asked(prefix_tokens=2), ended((0, 3), (1, 1))) == [
        "3.0 has tokens of weights [0], its replica s0 had [1] meanwhile"
    ]


def test_an_update_that_was_to_abort_and_left_something_in_flight_is_found() -> None:
    assert broken(*update(1), asked(), *update(2, "abort")) == [
        "s0 has taken weights 2 with ['3.0'] in flight, which it was to abort first"
    ]
