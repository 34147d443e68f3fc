"""What must not grow with a run (C-50), and what a reader is told that was too late (C-47)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from bus.core import Core
from bus.entry import Draft, Entry, Producer
from bus.errors import GapError
from bus.events import BatchFormed, CheckpointSaved, GenerationFinished, GenerationRequested, RunEnded, SampleReady, SampleStarted
from bus.host import own
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.memory_use import Use
from bus.recording import Row
from bus.redis_log import RedisLog
from bus.snapshot import freeze
from bus.trimming import Trimming
from policies.registry import POLICIES, create
from services.archiver.attendance import Attendance
from services.archiver.janitor import EVERY_S, FEWEST_KEPT, Janitor
from services.config import RedisConfig
from services.controller.core import ControllerCore
from services.payloads import requested_prompt_blob
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.bus.factories import fact, generation, plan, steps
from tests.cases.runs import of_kind, small_plan
from tests.services.archiver.trims import MemoryTrims
from tests.simulation.plans import Faults
from tests.simulation.world import World

OPERATOR = Producer("operator", 0)
SAMPLES = 2_000
PARTS = 3
BUDGET = 1 << 20


@pytest.mark.parametrize("after", [0, 3, 7])
@pytest.mark.parametrize("block_ms", [0, 20])
def test_c47_a_reader_that_was_trimmed_past_is_told_both_positions(server_url: str, run: str, after: int, block_ms: int) -> None:
    with RedisLog.create(server_url, plan(run), at=1) as log, RedisLog.open(server_url, run) as reader:
        log.append(OPERATOR, [fact(generation("1.0", "s0")), *steps(1, 9)])
        if after:
            assert [entry.position for entry in reader.read(0, after)] == list(range(1, after + 1))
        trimming = Trimming(server_url, run, log.log_id)
        trimming.trim(10)
        for _ in range(2):
            with pytest.raises(GapError, match=rf"has read up to {after}, the next entry that is there is 11: entries {after + 1} to 10 "):
                reader.read(after, 5, block_ms)
        with pytest.raises(GapError, match="inbox of s0 was trimmed up to 2, this reader has read up to 0"):
            reader.read_inbox("s0", 0, 5, block_ms)
        assert [entry.position for entry in reader.read(10, 5, block_ms)] == [11]
        trimming.close()


@pytest.fixture(scope="module")
def long_log() -> list[Entry]:
    """A run of thousands of samples, with swings, drops, failing and restarted replicas."""
    settings = small_plan(
        total_steps=SAMPLES // 8, required_samples=8, rollout_n=1, trigger_parameter_sync_step=4, max_running_requests=16,
        num_validation=2, eval_every_versions=3,
    )  # fmt: skip
    faults = Faults(reward_fails=0.02, filtered=0.02, answer_error=0.01, restarts=1_000, crashes=30, crash_chance=0.001)
    world = World(5, settings, faults)
    world.run(max_ticks=1_000_000)
    return world.store.entries


def grown(sizes: list[int]) -> float:
    """Most in the last part over most in the first one, the start of the run left out."""
    part = len(sizes) // PARTS
    return max(sizes[-part:]) / max(sizes[part // 4 : part])


MAKERS: Mapping[str, Callable[[], Core]] = {
    "controller": ControllerCore,
    "rollouter": RollouterCore,
    "trainer": TrainerCore,
    **{f"policy {name}": (lambda name=name: PolicyCore(create(name, {}))) for name in POLICIES},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", MAKERS)
def test_c50_a_cores_state_does_not_grow_with_the_run(name: str, long_log: list[Entry]) -> None:
    assert len(of_kind(long_log, SampleStarted)) >= SAMPLES
    core, sizes = MAKERS[name](), list[int]()
    answers: dict[int, list[Entry]] = {}
    for entry in long_log:
        if entry.derived and entry.source == core.source:
            answers.setdefault(entry.cause, []).append(entry)
    for entry in long_log:
        if not (entry.derived and entry.source == core.source):
            core.apply(entry)
        for answer in answers.get(entry.position, ()):
            core.apply(own(core, answer.event, entry.position))
        if entry.position % 100 == 0:
            sizes.append(len(freeze(core)))
    # Numbers and positions grow by a byte.
    assert grown(sizes) < 1.2, f"{name}: from {sizes[len(sizes) // 6]} to {sizes[-1]} bytes"


class Server:
    """What a server holds of a run, as its services write and its janitor forgets."""

    def __init__(self, entries: list[Entry]) -> None:
        self.store = MemoryStore("r")
        self.trims = MemoryTrims(self.store)
        self.blobs = MemoryBlobs(self.store)
        self.now = 0.0
        self.janitor = Janitor(
            MemoryLog(self.store),
            self.trims,
            self.blobs,
            lambda: Use(BUDGET, None),
            RedisConfig(memory_budget=BUDGET + 1, memory_pause_at=1.0, memory_resume_at=0.0),
            lambda: self.now,
        )
        self.sizes: list[tuple[int, int]] = []
        """(entries, payloads) at each look of the janitor."""
        for first in range(0, len(entries), 100):
            self._live(entries[first : first + 100])

    def _live(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.store.write(entry.source, entry.epoch, [Draft(entry.event, entry.derived, entry.cause, entry.at)])
            match entry.event:
                case GenerationRequested() as event:
                    self.blobs.put(requested_prompt_blob(event), b"x")
                case GenerationFinished(blob=blob) if blob is not None:
                    self.blobs.put(blob.name, b"x")
                case SampleReady(blob=blob):
                    self.blobs.put(blob.name, b"x")
                case CheckpointSaved() as event:
                    self.trims.report("trainer", event.position)
                case _:
                    pass
        for consumer in ("rollouter", "controller", "policy"):
            self.trims.report(consumer, entries[-1].position)
        self.now += EVERY_S
        self.janitor.take([Row.of(entry) for entry in entries])
        self.sizes.append((len(self.store.entries), len(self.store.blobs)))


def test_c50_what_the_server_holds_of_a_run_does_not_grow(long_log: list[Entry]) -> None:
    assert len(long_log) > 10 * FEWEST_KEPT
    sizes = Server(long_log).sizes
    assert grown([entries for entries, _ in sizes]) < 1.2
    assert grown([payloads for _, payloads in sizes]) < 1.2
    assert max(entries for entries, _ in sizes) < 2 * FEWEST_KEPT
    samples_of_a_checkpoint = len(of_kind(long_log, BatchFormed)) * 8 / len(of_kind(long_log, CheckpointSaved))
    assert max(payloads for _, payloads in sizes) < 10 * samples_of_a_checkpoint


def test_c50_who_is_there_is_remembered_once_whatever_the_number_of_restarts(long_log: list[Entry]) -> None:
    attendance = Attendance()
    for entry in long_log:
        attendance.apply(entry)
    assert isinstance(next(entry.event for entry in reversed(long_log) if isinstance(entry.event, RunEnded)), RunEnded)
    assert len(attendance.here) <= 6
