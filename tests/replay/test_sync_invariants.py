"""A log in which weights came another way than they can is found."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.events import (
    DirectWeights,
    Event,
    ReplicaAwake,
    ReplicaFailed,
    WeightsApplied,
    WeightsDelta,
    WeightsPublished,
    WeightUpdateRequested,
)
from replay.sync_invariants import SyncInvariants

Said = tuple[str, int, Event]
BY_NCCL = DirectWeights(address="trainer:1", transports=("nccl",))


def published(version: int, base: int | None = None, num_bytes: int = 10, epoch: int = 1, direct: DirectWeights | None = None) -> Said:
    delta = None if base is None else WeightsDelta(base_version=base, base_revision=0, uri=f"d{version}", num_bytes=num_bytes)
    event = WeightsPublished(
        version=version, revision=0, transport="file", uri=f"w{version}", digest=str(version), num_bytes=1000, seconds=0.0, delta=delta,
        direct=direct,
    )  # fmt: skip
    return "trainer", epoch, event


def told(version: int, base: int | None = None, digest: str = "") -> Said:
    delta = None if base is None else WeightsDelta(base_version=base, base_revision=0, uri=f"d{version}", num_bytes=10)
    event = WeightUpdateRequested(
        replica="s0", epoch=3, version=version, revision=0, uri=f"w{version}", digest=digest or str(version), delta=delta
    )  # fmt: skip
    return "rollouter", 1, event


def applied(version: int, transport: str, epoch: int = 3) -> Said:
    return "replica:s0", epoch, WeightsApplied(replica="s0", version=version, revision=0, seconds=0.0, transport=transport, num_bytes=10)


def awake(version: int, transport: str, epoch: int = 3) -> Said:
    return "replica:s0", epoch, ReplicaAwake(replica="s0", swing=1, version=version, revision=0, seconds=0.0, transport=transport)


FAILED: Said = ("replica:s0", 3, ReplicaFailed(replica="s0", during="update", error="half-way"))


def broken(*said: Said) -> str:
    fold = SyncInvariants()
    entries = [Entry(at + 1, source, epoch, False, 0, 0, "", event) for at, (source, epoch, event) in enumerate(said)]
    return "\n".join(words for entry in entries for words in fold.apply(entry))


def test_a_replica_that_keeps_up_lags_and_is_started_again_breaks_nothing() -> None:
    assert not broken(
        published(0), told(0), applied(0, "file"),
        published(1, base=0), told(1, base=0), applied(1, "delta"),
        published(2, base=1), published(3, base=2), told(3, base=2), applied(3, "file"),
        FAILED, applied(3, "shm", epoch=4),
        published(4, epoch=2, direct=BY_NCCL), awake(4, "nccl", epoch=4), published(5, base=4, epoch=2), awake(5, "shm", epoch=4),
        # What came directly is not what changes are written over.
        published(6, base=5, epoch=2, direct=BY_NCCL), awake(6, "nccl", epoch=4), awake(6, "delta", epoch=4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([published(0), published(1), published(2, base=0)], "changes of version 2 are against"),
        ([published(0), told(0), applied(0, "nccl")], "s0 took version 0 by nccl, which was not offered"),
        ([published(0, direct=BY_NCCL), applied(0, "ipc")], "by ipc, which was not offered: ('nccl',)"),
        ([published(0, direct=BY_NCCL), told(0)], "s0 was told of other weights 0"),
        ([published(0, direct=BY_NCCL), applied(0, "nccl"), published(1, base=0), applied(1, "delta")], "s0, which had None, took changes"),
        ([published(0), published(1, base=0, epoch=2)], "changes of version 1 are against"),
        ([published(0), published(1, base=0, num_bytes=1011)], "changes of version 1 take 1011 bytes, all of it 1000"),
        ([published(0), published(1, base=0), told(1)], "was told of other weights 1 than were published"),
        ([published(0), told(0, digest="other")], "was told of other weights 0 than were published"),
        ([published(0), published(1, base=0), applied(1, "delta")], "s0, which had None, took changes of version 1"),
        ([published(0), applied(0, "file"), published(1), applied(1, "delta")], "took changes of version 1 against None"),
        ([published(0), applied(0, "file"), published(1, base=0), awake(1, "delta", epoch=4)], "s0, which had None"),
    ],
)
def test_changes_that_cannot_be_what_they_are_said_to_be_are_found(said: list[Said], words: str) -> None:
    assert words in broken(*said)


def test_c19_a_replica_whose_update_failed_half_way_loads_nothing_any_more_and_its_successor_begins_with_whole_weights() -> None:
    """C-19."""
    before = [published(0), applied(0, "file"), published(1, base=0), told(1, base=0), FAILED]
    assert "loaded weights 1 after it had failed" in broken(*before, applied(1, "delta"))
    assert "s0, which had None, took changes" in broken(*before, applied(1, "delta", epoch=4))
    assert not broken(*before, applied(1, "file", epoch=4))
