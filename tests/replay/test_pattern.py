"""Patterns of entries: what they take, and what they say of one that cannot be meant."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import BatchFormed, BlobRef, Event, SampleReady, SwitchRequested
from replay.pattern import Pattern

VERDICT = SwitchRequested(
    target="train", answers=4, amends=None, give_back_at=12, max_lent_s=0.0, reason="no gap", evidence={"gap": -1.5, "ratio": 0.3}
)
READY = SampleReady(
    sample=17, num_tokens=9, oldest_version=0, newest_version=1, mean_reward=0.5, blob=BlobRef(name="sample:17", num_bytes=3, digest="d")
)
BATCH = BatchFormed(step=3, samples=(4, 17), micro_batches=((0, 1),))


def entry(event: Event, source: str = "policy") -> Entry:
    return Entry(9, source, 2, True, 8, 0, "", event)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("SwitchRequested", VERDICT),
        ("SwitchRequested target=train", VERDICT),
        ("SwitchRequested target=train answers=4 amends=none evidence.gap=-1.5", VERDICT),
        ("SwitchRequested 'reason=no gap' max_lent_s=0", VERDICT),
        ("source=policy epoch=2 cause=8 derived=true position=9", VERDICT),
        ("sample=17", READY),
        ("SampleReady blob.name=sample:17 blob.num_bytes=3", READY),
        ("BatchFormed samples=17", BATCH),
        ("micro_batches=1", BATCH),
    ],
)
def test_an_entry_is_like_a_pattern_that_says_of_its_fields_what_they_are(text: str, event: Event) -> None:
    assert Pattern.parse(text).matches(entry(event))


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("SwitchStarted", VERDICT),
        ("SwitchRequested target=rollout", VERDICT),
        ("SwitchRequested evidence.lag=1", VERDICT),
        ("SwitchRequested target.x=1", VERDICT),
        ("SwitchRequested answers=four", VERDICT),
        ("source=trainer", VERDICT),
        ("sample=17", BATCH),
        ("BatchFormed samples=5", BATCH),
        ("SampleReady blob.digest=e", READY),
    ],
)
def test_an_entry_that_says_otherwise_is_not(text: str, event: Event) -> None:
    assert not Pattern.parse(text).matches(entry(event))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SwitchRequestd", "there is no kind 'SwitchRequestd': did you mean 'SwitchRequested'?"),
        ("SwitchRequested tagret=train", "SwitchRequested has no field 'tagret': did you mean 'target'? It has target, answers"),
        ("smaple=3", "no kind has a field 'smaple': did you mean 'sample'?"),
        ("SwitchRequested train", "'train' is no part of a pattern: write FIELD=VALUE"),
        ("", "an empty pattern is like every entry"),
        ("'", "is no pattern"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_nearest_that_can(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Pattern.parse(text)
    assert complaint in str(raised.value)


def test_a_pattern_reads_as_it_is_written() -> None:
    assert str(Pattern.parse("SwitchRequested target=train 'reason=no gap'")) == "SwitchRequested target=train 'reason=no gap'"
