"""The loop that drives a core: what it need not be asked on."""

from __future__ import annotations

from collections.abc import Sequence

from bus.core import Deadline, Request
from bus.entry import Draft, Entry
from bus.events import Event, GenerationRequested, PolicyAttached, WaitSamples
from bus.host import Host
from bus.memory_log import MemoryLog
from bus.requests import ANSWERING
from tests.policies.logs import Story, plan


class Counting:
    """Counts what it is told and how often it is asked."""

    source = "policy"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.asked = 0

    def apply(self, entry: Entry) -> None:
        self.told.append(entry.event.kind)

    def decide(self) -> Event | None:
        self.asked += 1
        return None

    def outstanding(self) -> Sequence[Request]:
        return ()

    def deadlines(self) -> Sequence[Deadline]:
        return ()


def test_a_silent_core_is_neither_told_nor_asked_of_what_it_ignores() -> None:
    story = Story(plan())
    log = MemoryLog(story.store)
    attached = PolicyAttached(name="default", params={}, mode="active", code="c")
    start = log.attach("policy", Draft(attached, derived=False, cause=0, at=0))
    core = Counting()
    host = Host(core, log, start.producer, lambda: 0, ignores=ANSWERING)
    request = GenerationRequested(
        request="0.0", attempt=1, replica="s0", epoch=1, swing=0, sample=0, answer=0, max_new_tokens=1, prefix=None, prefix_tokens=0
    )
    story.write(WaitSamples(step=1, need=4, have=0))
    for _ in range(3):
        story.write(request)
    host.take(story.entries[start.position :])
    assert core.told == ["WaitSamples"]
    assert core.asked == 1
