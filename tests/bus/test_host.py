"""The loop that drives a core: what it need not be asked on, and how many of its decisions are appended together."""

from __future__ import annotations

from collections.abc import Sequence

from bus.core import Deadline, Request
from bus.entry import Draft, Entry
from bus.events import Event, GenerationRequested, PolicyAttached, ServiceStarted, WaitSamples
from bus.host import MAX_DECISIONS, MAX_TOGETHER, Host
from bus.memory_log import MemoryLog
from bus.requests import ANSWERING
from tests.policies.logs import Story, plan

GENERATION = GenerationRequested(
    request="0.0", attempt=1, replica="s0", epoch=1, swing=0, sample=0, answer=0, max_new_tokens=1, prefix=None, prefix_tokens=0
)


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


class Talking(Counting):
    """Says something whenever it is asked, until it has said enough."""

    source = "trainer"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def decide(self) -> Event | None:
        self._left -= 1
        return WaitSamples(step=self._left + 1, need=1, have=0) if self._left >= 0 else None


def test_many_decisions_are_appended_some_at_a_time_and_in_order() -> None:
    story = Story(plan())
    log = MemoryLog(story.store)
    start = log.attach("trainer", Draft(ServiceStarted(code="c"), derived=False, cause=0, at=0))
    count = 2 * MAX_DECISIONS + 5
    host = Host(Talking(count), log, start.producer, lambda: 0)
    for _ in range(4):
        story.write(GENERATION)
    decided = host.take(story.entries[start.position :])
    written = [entry.event for entry in story.entries if isinstance(entry.event, WaitSamples)]
    assert written == decided
    assert [event.step for event in written] == list(range(count, 0, -1))
    last = len(story.entries)
    ((_, first),) = [answer for (source, _, _), answer in story.store.answers.items() if source == "trainer"]
    assert last - first + 1 == count % MAX_TOGETHER
    assert host.decided_at == {"WaitSamples": last}


def test_a_silent_core_is_neither_told_nor_asked_of_what_it_ignores() -> None:
    story = Story(plan())
    log = MemoryLog(story.store)
    attached = PolicyAttached(name="default", params={}, mode="active", code="c")
    start = log.attach("policy", Draft(attached, derived=False, cause=0, at=0))
    core = Counting()
    host = Host(core, log, start.producer, lambda: 0, ignores=ANSWERING)
    story.write(WaitSamples(step=1, need=4, have=0))
    for _ in range(3):
        story.write(GENERATION)
    host.take(story.entries[start.position :])
    assert core.told == ["WaitSamples"]
    assert core.asked == 1
