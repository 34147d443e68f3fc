"""What the janitor lets the server forget, and when: only what is on the disk, and what no essential consumer needs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bus.connection import Connection
from bus.entry import Producer
from bus.events import (
    Event,
    PolicyAttached,
    SampleDropped,
    SampleStarted,
    ServiceLost,
)
from bus.keys import Keys
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.memory_use import Use
from bus.recorder import Recorder
from bus.recording import Recording, Row
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.trimming import Progress, Trimming
from services.archiver import janitor as module
from services.archiver.janitor import EVERY_S, FEWEST_KEPT, Janitor
from services.config import RedisConfig
from tests.bus.factories import fact, generation, plan, wait_samples
from tests.services.archiver.test_payload_lives import answered, asked, ready
from tests.services.archiver.trims import MemoryTrims

OPERATOR = Producer("operator", 0)
POLICY = PolicyAttached(name="default", params={}, mode="active", code="")


KEPT_ENTRIES = 2_000


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a log need not be long to be trimmed."""
    monkeypatch.setattr(module, "KEPT_ENTRIES", KEPT_ENTRIES)


class Run:
    """A log in memory with its janitor; what is `recorded` is handed to it, a second later each time."""

    def __init__(self) -> None:
        self.store = MemoryStore.create(plan("r"), at=0)
        self.log = MemoryLog(self.store)
        self.trims = MemoryTrims(self.store)
        self.blobs = MemoryBlobs(self.store)
        self.now = 0.0
        self.used = 0
        self.recorded = 0
        self.janitor = self.new_janitor()

    def new_janitor(self) -> Janitor:
        return Janitor(self.log, self.trims, self.blobs, lambda: Use(self.used, None), RedisConfig(), lambda: self.now)

    def say(self, *events: Event) -> None:
        self.log.append(OPERATOR, [fact(event) for event in events])

    def fill(self, count: int) -> None:
        self.log.append(OPERATOR, [fact(wait_samples(0)) for _ in range(count)])

    def record(self, up_to: int | None = None) -> None:
        last = up_to or self.store.entries[-1].position
        entries = self.store.entries[self.recorded + 1 - self.store.first : last + 1 - self.store.first]
        self.recorded = last
        self.now += EVERY_S
        self.janitor.take([Row.of(entry) for entry in entries])

    def tell(self, **positions: int) -> None:
        for consumer, position in positions.items():
            self.trims.report(consumer, position)

    @property
    def oldest(self) -> int:
        return self.store.first


def test_a_log_is_trimmed_behind_the_slowest_essential_consumer() -> None:
    run = Run()
    run.fill(5_000)
    run.tell(trainer=1_000, rollouter=4_999, controller=2_000)
    run.record()
    assert run.oldest == 1_001
    run.tell(trainer=4_500, controller=4_500)
    run.record()
    assert run.oldest == 5_001 - KEPT_ENTRIES + 1


def test_when_memory_is_short_fewer_of_the_newest_entries_are_kept() -> None:
    run = Run()
    run.fill(5_000)
    run.tell(trainer=5_000, rollouter=5_000, controller=5_000)
    run.used = RedisConfig().memory_budget * 7 // 10
    run.record()
    run.record()
    assert run.oldest == 5_001 - FEWEST_KEPT + 1


def test_a_run_over_its_budget_is_neither_paused_nor_ended_for_what_can_be_forgotten() -> None:
    """It took everything between two looks, most of it entries that are kept only as long as there is room."""
    run, budget = Run(), RedisConfig().memory_budget
    run.janitor = Janitor(
        run.log, run.trims, run.blobs, lambda: Use(budget * len(run.store.entries) // 1_900, None), RedisConfig(), lambda: run.now
    )
    run.fill(KEPT_ENTRIES - 1)
    run.tell(trainer=2_000, rollouter=2_000, controller=2_000)
    run.record()
    assert run.oldest == 2_001 - FEWEST_KEPT
    assert {entry.event.kind for entry in run.store.entries} == {"WaitSamples"}
    run.fill(900)
    run.record()
    assert run.oldest == 2_901 - FEWEST_KEPT
    run.fill(900)
    run.record(2_901)
    said = [entry.event.kind for entry in run.store.entries if entry.source == "janitor"]
    assert said == ["RolloutPaused"], "nothing more can be forgotten"


def test_nothing_is_trimmed_before_everybody_essential_has_told_where_it_is() -> None:
    run = Run()
    run.fill(5_000)
    run.tell(trainer=2_500, rollouter=2_500)
    run.record()
    assert run.oldest == 1


def test_what_is_not_on_the_disk_is_not_trimmed_and_the_newest_recorded_entries_stay() -> None:
    run = Run()
    run.fill(5_000)
    run.tell(trainer=5_000, rollouter=5_000, controller=5_000)
    run.record(3_000)
    assert run.oldest == 3_000 - KEPT_ENTRIES + 1


def test_a_dead_observer_holds_nothing() -> None:
    run = Run()
    run.fill(5_000)
    run.tell(trainer=2_500, rollouter=2_800, controller=2_800, monitor=3)
    run.tell(**{"policy:static": 5})
    run.record()
    assert run.oldest == 2_501


def test_a_policy_holds_the_log_while_it_is_there_and_no_longer() -> None:
    run = Run()
    run.log.attach("policy", fact(POLICY))
    run.fill(5_000)
    run.tell(trainer=2_500, rollouter=2_500, controller=2_500, policy=100)
    run.record()
    assert run.oldest == 1
    run.tell(policy=300)
    run.record()
    assert run.oldest == 301
    run.say(ServiceLost(service="policy", epoch=1, restarting=True))
    run.record()
    assert run.oldest == 2_501


def test_a_payload_is_deleted_when_the_entry_that_ends_it_is_on_the_disk_and_not_before() -> None:
    run = Run()
    for name in ("prompt:0", "answer:0.0.1", "sample:0", "sample:1"):
        run.blobs.put(name, b"x")
    run.say(SampleStarted(sample=0, version=0), asked(0, 0), answered(0, 0), ready(0))
    run.record(4)
    assert list(run.store.blobs) == ["prompt:0", "answer:0.0.1", "sample:0", "sample:1"]
    run.record()
    assert list(run.store.blobs) == ["sample:0", "sample:1"]
    run.say(SampleDropped(sample=0, reason="stale"))
    run.record()
    assert list(run.store.blobs) == ["sample:1"]


def test_a_successor_deletes_what_its_predecessor_had_no_time_for_and_keeps_what_lives(tmp_path: Path) -> None:
    run = Run()
    run.say(*(event for sample in range(50) for event in (SampleStarted(sample=sample, version=0), asked(sample, 0), answered(sample, 0))))
    run.say(*(ready(sample) for sample in range(20)), *(SampleDropped(sample=sample, reason="stale") for sample in range(15)))
    run.record()
    floor = run.trims.told["janitor"]
    assert floor == 1 + 15 * 3
    run.say(*(ready(sample) for sample in range(20, 30)))
    for sample in range(15, 50):
        for name in (f"prompt:{sample}", f"answer:{sample}.0.1", f"sample:{sample}"):
            run.blobs.put(name, b"x")
    with Recorder.open(tmp_path, "r", run.store.log_id) as recorder:
        recorder.append(run.store.entries)
    with Recording.open(tmp_path) as recording:
        run.new_janitor().recover(recording)
    assert run.store.blobs == {
        **{name: b"x" for sample in range(30, 50) for name in (f"prompt:{sample}", f"answer:{sample}.0.1")},
        **{f"sample:{sample}": b"x" for sample in range(15, 50)},
    }


def test_an_inbox_that_is_never_read_does_not_fill_the_server(server_url: str, run: str) -> None:
    server = Connection(server_url)
    with RedisLog.create(server_url, plan(run), at=1) as log:
        janitor_rows: list[Row] = []
        trims, blobs = Trimming(server_url, run, log.log_id), RedisBlobs(server_url, run)
        now, settings = 0.0, RedisConfig(memory_budget=1 << 20)
        janitor = Janitor(log, trims, blobs, lambda: Use(900_000, None), settings, lambda: now)
        for consumer in ("trainer", "rollouter", "controller"):
            progress = Progress(server_url, run, consumer)
            progress.tell(0)
            progress.close(9_000)
        for number in range(20):
            log.append(OPERATOR, [fact(generation(f"{number}.{answer}", "s0")) for answer in range(500)])
            janitor_rows = [Row.of(entry) for entry in log.read(1 + 500 * number, 500)]
            now += EVERY_S
            janitor.take(janitor_rows)
        for key in (Keys(run).log, Keys(run).inbox("s0")):
            assert cast(int, server.call("XLEN", key)) <= FEWEST_KEPT + 501
        trims.close()
        blobs.close()
    server.close()


def test_a_position_is_told_when_it_is_news_and_at_the_end_at_once(redis_url: str, run: str) -> None:
    trims, progress = Trimming(redis_url, run, "any"), Progress(redis_url, run, "trainer")
    progress.tell(3)
    progress.tell(4)
    assert trims.positions() == {"trainer": 3}
    progress.close(5)
    assert trims.positions() == {"trainer": 5}
    trims.close()


def test_a_server_that_is_away_holds_nobody_up_who_tells_a_position() -> None:
    progress = Progress("redis://127.0.0.1:1", "r", "trainer")
    progress.tell(3)
    progress.close(3)
