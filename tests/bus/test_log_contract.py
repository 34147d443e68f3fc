"""The contract of `bus.log`, kept by the log in memory and by the Redis log on both servers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from bus import chain
from bus.blobs import TOGETHER_BYTES, blob_ref, get_blob, get_blobs, put_blob
from bus.codec import MAX_BYTES, encode
from bus.entry import Draft, Entry, Producer
from bus.errors import BlobMissing, EntryTooLarge, Fenced, GapError, LogChanged, LogError
from bus.events import RunEnded
from bus.log import Attached
from tests.bus.factories import fact, generation, plan, started, step_done, steps, wait_samples
from tests.bus.worlds import MemoryWorld, NumberedLog, RedisWorld, World

OPERATOR = Producer("operator", 0)
LONG_BLOCK_MS = 60_000
"""A wait that a test never waits out: something ends it."""


@pytest.fixture(params=["memory", "redis", "valkey"])
def world(request: pytest.FixtureRequest, run: str) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld(run)
        return
    redis_world = RedisWorld(request.getfixturevalue(f"{request.param}_url"), run)
    yield redis_world
    redis_world.close()


def everything(log: NumberedLog) -> list[Entry]:
    return log.read(0, 10_000)


def attach(log: NumberedLog, source: str = "trainer") -> Attached:
    return log.attach(source, fact(started()))


def test_the_first_entry_of_a_log_is_its_plan(world: World, run: str) -> None:
    (entry,) = everything(world.client())
    assert entry.event == plan(run)
    assert (entry.position, entry.source, entry.epoch, entry.derived, entry.cause, entry.at) == (1, "supervisor", 0, False, 0, 1)


def test_an_entry_comes_back_as_it_was_appended(world: World) -> None:
    log = world.client()
    producer = attach(log).producer
    at = 2**53 + 1  # a double cannot hold it
    position = log.append(producer, [Draft(step_done(3), derived=True, cause=2, at=at)])
    entry = everything(world.client())[-1]
    assert entry[:6] == (position, "trainer", 1, True, 2, at)
    assert entry.event == step_done(3)


def test_positions_are_dense_and_a_batch_is_adjacent_and_in_order(world: World) -> None:
    log = world.client()
    producer = attach(log).producer
    assert log.append(producer, steps(1, 3)) == 3
    assert log.append(producer, steps(4, 2)) == 6
    entries = everything(log)
    assert [entry.position for entry in entries] == [1, 2, 3, 4, 5, 6, 7]
    assert [entry.at for entry in entries[2:]] == [1, 2, 3, 4, 5]


def test_an_append_of_nothing_writes_nothing(world: World) -> None:
    log = world.client()
    producer = attach(log).producer
    assert log.append(producer, []) == 3
    assert log.last_position() == 2
    assert log.append(producer, steps(1, 1)) == 3


def test_the_chain_runs_through_all_entries(world: World) -> None:
    log = world.client()
    producer = attach(log, "rollouter").producer
    log.append(producer, [*steps(1, 2), fact(generation("1.0", "a0"), at=2**60), fact(generation("1.1", "b0"))])
    previous = chain.GENESIS
    for entry in everything(log):
        event = entry.event
        link = chain.link(
            previous, entry.position, event.kind, event.schema_version, entry.source, entry.epoch, entry.derived, entry.cause, entry.at,
            encode(event),
        )  # fmt: skip
        assert entry.chain == link
        previous = link


def test_every_client_sees_the_same_log(world: World) -> None:
    log, other = world.client(), world.client()
    log.append(attach(log).producer, steps(1, 3))
    assert everything(log) == everything(other)
    assert log.log_id == other.log_id
    assert log.run == other.run
    assert log.last_position() == other.last_position() == 5


def test_attach_allocates_the_next_epoch_of_that_source(world: World) -> None:
    log = world.client()
    assert attach(log) == Attached(Producer("trainer", 1), 2)
    assert attach(log, "replica:a0") == Attached(Producer("replica:a0", 1), 3)
    assert attach(world.client()) == Attached(Producer("trainer", 2), 4)
    assert [(entry.source, entry.epoch) for entry in everything(log)[1:]] == [("trainer", 1), ("replica:a0", 1), ("trainer", 2)]


def test_an_older_incarnation_is_fenced_and_nothing_of_its_batch_is_written(world: World) -> None:
    log = world.client()
    old = attach(log).producer
    log.append(old, steps(1, 1))
    attach(world.client())
    with pytest.raises(Fenced, match="trainer epoch 1 was replaced by epoch 2"):
        log.append(old, steps(2, 2))
    assert log.last_position() == 4


def test_an_epoch_that_nobody_allocated_is_fenced(world: World) -> None:
    with pytest.raises(Fenced):
        world.client().append(Producer("trainer", 1), steps(1, 1))


def test_operators_have_no_epoch_and_are_never_fenced(world: World) -> None:
    log = world.client()
    assert log.append(OPERATOR, steps(1, 1)) == 2
    assert world.client().append(OPERATOR, steps(2, 1)) == 3
    assert log.append(OPERATOR, steps(3, 1)) == 4


def test_a_retry_gets_the_position_of_the_first_try_and_writes_nothing(world: World) -> None:
    log = world.client()
    producer = attach(log).producer
    first = log.append_numbered(producer, steps(1, 2), 10)
    other = world.client().append(OPERATOR, steps(9, 1))
    assert log.append_numbered(producer, steps(1, 2), 10) == first == 3
    assert other == log.last_position() == 5


def test_counters_of_different_clients_have_nothing_to_do_with_each_other(world: World) -> None:
    log, other = world.client(), world.client()
    assert [log.append_numbered(OPERATOR, steps(1, 1), 5), other.append_numbered(OPERATOR, steps(2, 1), 5)] == [2, 3]
    assert log.append_numbered(OPERATOR, steps(1, 1), 5) == 2


def test_a_try_that_was_overtaken_by_the_next_append_is_not_written(world: World) -> None:
    log = world.client()
    log.append_numbered(OPERATOR, steps(1, 1), 2)
    with pytest.raises(LogError, match="append 1 of this client came after its append 2"):
        log.append_numbered(OPERATOR, steps(2, 1), 1)
    assert log.last_position() == 2


def test_nothing_of_a_batch_with_a_too_large_entry_is_written(world: World) -> None:
    log = world.client()
    producer = attach(log).producer
    with pytest.raises(EntryTooLarge, match=f"limit is {MAX_BYTES}"):
        log.append(producer, [*steps(1, 1), fact(started("x" * MAX_BYTES))])
    with pytest.raises(EntryTooLarge):
        log.attach("trainer", fact(started("x" * MAX_BYTES)))
    assert log.last_position() == 2
    assert log.append(producer, steps(1, 1)) == 3


def test_read_gives_what_comes_after_a_position_up_to_a_limit(world: World) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 9))
    assert [entry.position for entry in log.read(3, 4)] == [4, 5, 6, 7]
    assert [entry.position for entry in log.read(7, 4)] == [8, 9, 10]
    assert log.read(10, 4) == []
    assert [entry.position for entry in log.read(0, 2)] == [1, 2]


def test_a_blocked_reader_gets_what_is_appended(world: World) -> None:
    log, writer = world.client(), world.client()
    got: list[Entry] = []
    reader = threading.Thread(target=lambda: got.extend(log.read(1, 100, LONG_BLOCK_MS)))
    reader.start()
    writer.append(OPERATOR, steps(1, 3))
    reader.join()
    assert [entry.position for entry in got] == [2, 3, 4]


def test_a_block_ends_when_its_time_is_over(world: World) -> None:
    log = world.client()
    assert log.read(1, 100, 20) == []
    assert log.read_inbox("a0", 1, 100, 20) == []


def test_an_inbox_has_the_entries_for_its_replica_and_no_others(world: World) -> None:
    log = world.client()
    producer = attach(log, "rollouter").producer
    log.append(producer, [fact(generation("1.0", "a0"), at=5), fact(generation("1.1", "b0")), fact(wait_samples(1))])
    log.append(producer, [fact(generation("2.0", "a0"))])
    everywhere = everything(log)
    assert log.read_inbox("a0", 0, 10) == [everywhere[2], everywhere[5]]
    assert log.read_inbox("b0", 0, 10) == [everywhere[3]]
    assert log.read_inbox("a0", 3, 10) == [everywhere[5]]
    assert log.read_inbox("a0", 0, 1) == [everywhere[2]]
    assert log.read_inbox("c0", 0, 10) == []


def test_who_reads_an_inbox_is_told_where_the_run_ended(world: World) -> None:
    log, other = world.client(), world.client()
    log.append(OPERATOR, steps(1, 2))
    other.read_inbox("a0", 1, 10)
    assert other.ended_at() == 0
    log.append(OPERATOR, [*steps(3, 1), fact(RunEnded(reason="completed")), *steps(4, 1)])
    log.append(OPERATOR, steps(5, 1))
    other.read_inbox("a0", 1, 10)
    assert other.ended_at() == 5


def test_a_blocked_reader_of_an_inbox_gets_what_is_appended(world: World) -> None:
    log, writer = world.client(), world.client()
    got: list[Entry] = []
    reader = threading.Thread(target=lambda: got.extend(log.read_inbox("a0", 1, 100, LONG_BLOCK_MS)))
    reader.start()
    writer.append(OPERATOR, steps(1, 1))
    writer.append(OPERATOR, [fact(generation("1.0", "a0"))])
    reader.join()
    assert [entry.position for entry in got] == [3]


def test_c_47_a_reader_behind_the_trimming_gets_a_gap_with_both_positions(world: World) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 9))
    log.read(0, 3)
    world.trim(7)
    with pytest.raises(GapError, match="entries 4 to 7 were trimmed"):
        log.read(3, 10)
    with pytest.raises(GapError, match="entries 1 to 7 were trimmed"):
        world.client().read(0, 10, 20)


def test_a_reader_at_the_edge_of_the_trimming_misses_nothing(world: World) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 4))
    log.read(0, 3)
    world.trim(3)
    assert [entry.position for entry in log.read(3, 10)] == [4, 5]
    assert [entry.position for entry in log.read(4, 10)] == [5]


def test_the_newest_entry_is_never_trimmed(world: World) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 4))
    world.trim(100)
    assert log.last_position() == 5
    assert [entry.position for entry in log.read(4, 10)] == [5]
    assert log.append(OPERATOR, steps(5, 1)) == 6


def test_a_reader_of_a_recreated_log_is_told(world: World) -> None:
    log, blocked, inbox = world.client(), world.client(), world.client()
    old_id = log.log_id
    log.append(OPERATOR, steps(1, 3))
    for reader in (log, blocked):
        everything(reader)
    world.recreate()
    reads: list[Callable[[], object]] = [
        lambda: log.read(4, 10),
        lambda: blocked.read(4, 10, 20),
        lambda: inbox.read_inbox("a0", 2, 10),
    ]
    for read in reads:
        with pytest.raises(LogChanged, match=old_id):
            read()
    with pytest.raises(LogChanged, match=old_id):
        log.append(OPERATOR, steps(4, 1))
    with pytest.raises(LogChanged, match=old_id):
        log.attach("trainer", fact(started()))
    with pytest.raises(LogChanged, match=old_id):
        log.last_position()


def test_a_recreated_log_that_has_grown_past_the_reader_is_noticed(world: World) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 3))
    assert len(everything(log)) == 4
    world.recreate()
    newcomer = world.client()
    newcomer.append(OPERATOR, [*steps(1, 9), fact(generation("1.0", "a0"))])
    with pytest.raises(LogChanged):
        log.read(4, 10)
    with pytest.raises(LogChanged):
        log.read(0, 10)
    with pytest.raises(LogChanged):
        log.read_inbox("a0", 4, 10)
    assert len(everything(newcomer)) == 11


def test_who_has_read_further_than_a_rolled_back_log_goes_is_told_both_positions(world: World) -> None:
    reader, writer = world.client(), world.client()
    world.save()
    writer.append(OPERATOR, steps(1, 3))
    everything(reader)
    world.restore()
    uses: list[Callable[[], object]] = [
        lambda: reader.read(4, 10),
        lambda: reader.read_inbox("a0", 4, 10),
        lambda: reader.append(OPERATOR, steps(1, 1)),
    ]
    for use in uses:
        with pytest.raises(LogChanged, match="ends at 1, this client knows it up to 4"):
            use()
    with pytest.raises(LogChanged, match="ends at 1, this client knows it up to 4"):
        writer.append(OPERATOR, steps(4, 1))


def test_a_rolled_back_log_that_went_on_differently_is_noticed(world: World) -> None:
    reader, writer = world.client(), world.client()
    world.save()
    writer.append(OPERATOR, steps(1, 3))
    everything(reader)
    world.restore()
    newcomer = world.client()
    newcomer.append(OPERATOR, steps(11, 3))
    with pytest.raises(LogChanged):
        reader.read(4, 10)
    newcomer.append(OPERATOR, steps(14, 3))
    with pytest.raises(LogChanged):
        reader.read(4, 10)
    assert len(everything(newcomer)) == 7


def test_reading_from_a_position_that_the_log_does_not_have_is_no_silent_wait(world: World) -> None:
    with pytest.raises(LogChanged, match="ends at 1, this client knows it up to 9"):
        world.client().read(9, 10)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_writers_and_readers_in_threads_see_one_dense_order(world: World, seed: int) -> None:
    num_writers, num_appends = 3, 25
    draws = random.Random(seed)
    sizes = [[draws.randint(1, 7) for _ in range(num_appends)] for _ in range(num_writers)]
    total = 1 + num_writers + sum(map(sum, sizes))
    logs = [world.client() for _ in range(num_writers)]
    readers = [(world.client(), draws.randint(1, 13)) for _ in range(2)]
    seen: list[list[Entry]] = [[] for _ in readers]

    def write(number: int) -> None:
        producer = attach(logs[number], f"replica:r{number}").producer
        count = 0
        for size in sizes[number]:
            logs[number].append(producer, steps(count, size))
            count += size

    def read(number: int) -> None:
        log, limit = readers[number]
        while len(seen[number]) < total:
            seen[number] += log.read(len(seen[number]), limit, LONG_BLOCK_MS)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(num_writers)]
    threads += [threading.Thread(target=read, args=(number,)) for number in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.position for entry in seen[0]] == list(range(1, total + 1))
    assert seen[0] == seen[1]
    for number in range(num_writers):
        own = [entry for entry in seen[0] if entry.source == f"replica:r{number}"][1:]
        assert [entry.at for entry in own] == list(range(sum(sizes[number])))
        first = 0
        for size in sizes[number]:
            assert own[first + size - 1].position - own[first].position == size - 1
            first += size


def test_only_one_of_many_incarnations_that_start_at_once_goes_on(world: World) -> None:
    logs = [world.client() for _ in range(4)]
    outcomes: list[int | Fenced] = []
    attached = threading.Barrier(len(logs))

    def incarnation(log: NumberedLog) -> None:
        producer = attach(log).producer
        attached.wait()
        try:
            outcomes.append(log.append(producer, steps(1, 1)))
        except Fenced as error:
            outcomes.append(error)

    threads = [threading.Thread(target=incarnation, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(outcome, Fenced) for outcome in outcomes) == [False, True, True, True]
    assert [entry.epoch for entry in everything(logs[0])[1:]] == [1, 2, 3, 4, 4]


def test_a_payload_comes_back_until_it_is_deleted(world: World) -> None:
    blobs = world.blobs()
    blobs.put("sample:1", b"\x00\xff" * 1000)
    blobs.put("sample:2", b"")
    assert world.blobs().get("sample:1") == b"\x00\xff" * 1000
    assert blobs.get("sample:2") == b""
    blobs.delete(["sample:1", "never written"])
    blobs.delete([])
    with pytest.raises(BlobMissing, match="'sample:1' is not there"):
        blobs.get("sample:1")


def test_many_payloads_are_written_and_read_in_a_few_calls(world: World) -> None:
    blobs = world.blobs()
    payloads = {f"answer:{number}": bytes([number % 256]) * (number % 40) for number in range(1203)}
    blobs.put_many(payloads)
    blobs.put_many({})
    assert blobs.get_many([*payloads, "never written"]) == payloads
    assert world.blobs().get("answer:1202") == payloads["answer:1202"]


def test_a_payload_that_is_not_the_one_in_the_log_is_refused(world: World) -> None:
    blobs = world.blobs()
    ref = put_blob(blobs, "sample:1", b"first")
    assert ref == blob_ref("sample:1", b"first")
    assert get_blob(blobs, ref) == b"first"
    blobs.put("sample:1", b"second")
    with pytest.raises(BlobMissing, match=f"recorded {ref.digest} and 5"):
        get_blob(blobs, ref)


def test_payloads_are_read_in_order_several_in_a_call_and_each_must_be_the_one_in_the_log(world: World) -> None:
    blobs = world.blobs()
    refs = [put_blob(blobs, f"sample:{number}", bytes([number]) * (TOGETHER_BYTES // 3 + number)) for number in range(8)]
    assert [data[0] for data in get_blobs(blobs, [*refs, refs[2]])] == [*range(8), 2]
    assert list(get_blobs(blobs, [])) == []
    blobs.put("sample:4", b"another")
    with pytest.raises(BlobMissing, match=f"recorded {refs[4].digest}"):
        list(get_blobs(blobs, refs))
    blobs.delete(["sample:1"])
    with pytest.raises(BlobMissing, match="'sample:1' is not there"):
        list(get_blobs(blobs, refs))


def test_payloads_are_there_with_the_entries_that_name_them(world: World) -> None:
    log, blobs = world.client(), world.blobs()
    producer = attach(log, "trainer").producer
    payloads = {f"answer:{number}": bytes([number % 256]) * number for number in range(1203)}
    assert log.append_with(payloads, producer, steps(1, 2)) == 3
    assert log.append_with({"answer:0": b"anew"}, producer, steps(3, 1)) == 5
    assert log.append_with({}, producer, steps(4, 1)) == 6
    assert log.append(producer, steps(5, 1)) == 7
    assert blobs.get_many(list(payloads)) == payloads | {"answer:0": b"anew"}
    assert [entry.position for entry in world.client().read(2, 10)] == [3, 4, 5, 6, 7]


def test_payloads_do_not_let_a_fenced_producer_in(world: World) -> None:
    log = world.client()
    old = attach(log, "trainer").producer
    attach(world.client(), "trainer")
    with pytest.raises(Fenced, match="epoch 1 was replaced by epoch 2"):
        log.append_with({"answer:1": b"data"}, old, steps(1, 1))
    assert log.last_position() == 3


def test_one_that_may_only_follow_a_certain_epoch_is_fenced_when_another_came_first(world: World) -> None:
    log = world.client()
    first = log.attach("trainer", fact(started()), 0)
    assert first.producer.epoch == 1
    assert log.attach("trainer", fact(started()), 1).producer.epoch == 2
    for after in (0, 1, 3):
        with pytest.raises(Fenced):
            log.attach("trainer", fact(started()), after)
    assert log.last_position() == 3
    assert log.attach("trainer", fact(started())).producer.epoch == 3
