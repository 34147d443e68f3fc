"""How weights came to the replicas is counted from what they say."""

from __future__ import annotations

import pytest

from bus.events import ReplicaAwake, WeightsApplied, WeightsDelta, WeightsPublished
from services.monitor.report import syncs_text
from services.monitor.syncs import WeightSyncs


def published(version: int, revision: int = 0, num_bytes: int = 1_000_000, *, delta: bool = False) -> WeightsPublished:
    changes = WeightsDelta(base_version=version - 1, base_revision=0, uri="d", num_bytes=20_000) if delta else None
    return WeightsPublished(
        version=version, revision=revision, transport="file", uri="w", digest="", num_bytes=num_bytes, seconds=0.0, delta=changes
    )  # fmt: skip


def applied(version: int, transport: str, num_bytes: int, revision: int = 0) -> WeightsApplied:
    return WeightsApplied(replica="s0", version=version, revision=revision, seconds=0.5, transport=transport, num_bytes=num_bytes)


def awake(version: int, transport: str, num_bytes: int) -> ReplicaAwake:
    return ReplicaAwake(replica="h0", swing=1, version=version, revision=0, seconds=0.25, transport=transport, num_bytes=num_bytes)


def test_bytes_that_were_read_are_set_against_those_of_the_versions_that_were_loaded() -> None:
    syncs = WeightSyncs()
    for event in (
        published(0), applied(0, "file", 1_000_000), published(1, delta=True), applied(1, "delta", 20_000), awake(1, "file", 1_020_000),
        published(1, revision=1, num_bytes=2_000_000), applied(1, "file", 2_000_000, revision=1),
    ):  # fmt: skip
        syncs.apply(event)
    found = syncs.as_dict()
    assert (found["publications"], found["deltas"], found["num_bytes"], found["full_bytes"]) == (3, 1, 4_040_000, 5_000_000)
    assert found["by_transport"] == {
        "delta": {"count": 1, "num_bytes": 20_000, "full_bytes": 1_000_000, "seconds": 0.5},
        "file": {"count": 3, "num_bytes": 4_020_000, "full_bytes": 4_000_000, "seconds": 1.25},
    }
    assert syncs_text(found) == "1 by delta, 3 by file: 4.0 MB read, 80.8 % of 5.0 MB in all"


def test_of_a_run_of_an_older_version_nothing_is_known() -> None:
    syncs = WeightSyncs()
    for event in (published(0), applied(0, "", 0)):
        syncs.apply(event)
    assert syncs_text(syncs.as_dict()) == "how replicas got them is not known"


@pytest.mark.parametrize(("number", "text"), [(99_999, "99,999 B"), (1_500_000, "1.5 MB"), (16_400_000_000, "16.40 GB")])
def test_bytes_are_told_in_a_size_that_suits_them(number: int, text: str) -> None:
    syncs = WeightSyncs()
    syncs.apply(published(0, num_bytes=number))
    syncs.apply(applied(0, "shm", number))
    assert syncs_text(syncs.as_dict()) == f"1 by shm: {text} read, 100.0 % of {text} in all"
