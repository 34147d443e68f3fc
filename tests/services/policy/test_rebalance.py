"""A policy's request to spread the requests anew reaches the replicas, through the rollouter."""

from __future__ import annotations

from typing import Literal

import pytest

from bus.entry import Entry
from bus.errors import CoreError
from bus.events import (
    AbortRequested,
    Event,
    RebalanceRequested,
    ReplicaAdded,
    ServiceStarted,
    SwitchStarted,
    WeightsApplied,
    WeightsPublished,
)
from bus.host import check_emitter, decide_all
from services.rollouter.core import RollouterCore
from tests.policies.logs import plan

Asker = Literal["operator", "policy"]


class Told:
    """The rollouter's core, told an entry at a time; it decides on each."""

    def __init__(self) -> None:
        self.core = RollouterCore()
        self.position = 0
        self.aborted: list[AbortRequested] = []

    def tell(self, event: Event, source: str) -> None:
        self.position += 1
        self.core.apply(Entry(self.position, source, 1, False, 0, 0, "", event))
        self.aborted += [event for event in decide_all(self.core, self.position) if isinstance(event, AbortRequested)]

    def start(self, name: str) -> None:
        source = f"replica:{name}"
        self.tell(ServiceStarted(code="", role="standalone"), source)
        self.tell(ReplicaAdded(replica=name, role="standalone", slots=8, seconds=0.0), source)
        self.tell(WeightsApplied(replica=name, version=0, revision=0, seconds=0.0), source)


@pytest.mark.parametrize("asker", ["operator", "policy"])
def test_whoever_asks_for_it_the_rollouter_moves_requests_to_where_there_is_room(asker: Asker) -> None:
    told = Told()
    told.tell(plan(standalone=("s0", "s1"), rollout_n=1, staleness_threshold=0.0, enable_rebalance=False), "supervisor")
    told.tell(WeightsPublished(version=0, revision=0, transport="file", uri="w", digest="d", num_bytes=1, seconds=0.1), "trainer")
    told.start("s0")
    told.start("s1")
    told.tell(SwitchStarted(swing=1, target="train", reason="give_back"), "controller")
    assert told.aborted == []
    told.tell(RebalanceRequested(reason=asker), asker)
    assert [(event.replica, event.reason) for event in told.aborted] == [("s0", "rebalance")]
    assert len(told.aborted[0].requests) == 4


def test_only_the_policy_asks_in_the_policys_name() -> None:
    check_emitter("policy", RebalanceRequested(reason="policy"))
    check_emitter("operator", RebalanceRequested())
    for source, event in (("policy", RebalanceRequested()), ("operator", RebalanceRequested(reason="policy"))):
        with pytest.raises(CoreError, match="RebalanceRequested, which only"):
            check_emitter(source, event)
