"""What only a server can do to a log: lose answers and connections, restart, refuse, hold what others wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import msgpack
import pytest

from bus.alive import Alive, living_epochs
from bus.blobs import DIGEST_BYTES, blob_digest
from bus.connection import Connection
from bus.embedded import EmbeddedServer
from bus.entry import Entry, Producer
from bus.errors import BlobMissing, CodecError, ConfigError, EntryTooLarge, GapError, LogChanged, LogMissing, LogUnavailable, ServerFull
from bus.events import RunPlanned
from bus.inboxes import Inboxes
from bus.keys import Keys, check_run_id
from bus.memory_use import MemoryUse
from bus.redis_blobs import KEY_BYTES, RedisBlobs
from bus.redis_log import APPEND, RedisLog
from bus.runs import list_runs
from bus.trimming import Trimming
from bus.wire import Argument
from tests.bus.factories import fact, generation, plan, started, steps
from tests.bus.proxy import LossyProxy
from tests.bus.watching import blocked_client, client_ids, in_thread, positions
from tests.bus.worlds import RedisWorld

OPERATOR = Producer("operator", 0)
LONG_BLOCK_MS = 60_000


@pytest.fixture
def world(server_url: str, run: str) -> Iterator[RedisWorld]:
    redis_world = RedisWorld(server_url, run)
    yield redis_world
    redis_world.close()


def restore(backup: Path, folder: Path) -> None:
    """A stopped server's files are exchanged for older ones."""
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def script_arguments(mode: str, log_id: str, source: str = "operator", client: str = "c", body: bytes = b"\x80") -> list[Argument]:
    """An append of one entry by hand; bodies may have 100 bytes."""
    return [mode, log_id, 0, source, 0, client, 1, 100, 0, 1, "StepDone", 1, 0, 0, 1, 0, body]


def test_a_run_is_created_once(world: RedisWorld) -> None:
    run = world.keys.run
    with pytest.raises(ConfigError, match=f"there is a run '{run}'"):
        RedisLog.create(world.url, plan(run), at=1)
    assert len(world.client().read(0, 10)) == 1


def test_a_log_that_was_never_created_cannot_be_opened(server_url: str) -> None:
    with pytest.raises(LogMissing, match="no run 'nobody'"):
        RedisLog.open(server_url, "nobody")


def test_the_server_lists_the_runs_it_has(world: RedisWorld) -> None:
    run = world.keys.run
    assert run in list_runs(world.server)
    world.delete()
    assert run not in list_runs(world.server)


@pytest.mark.parametrize("run", ["", "a b", "a{b}", "a:b", "a/b", "..", "x" * 65, "a\n"])
def test_an_id_that_would_break_a_key_or_a_folder_is_no_run_id(run: str) -> None:
    with pytest.raises(ConfigError, match="no run id"):
        check_run_id(run)


def test_all_keys_of_a_run_lie_in_one_slot(world: RedisWorld) -> None:
    keys = Keys(world.keys.run)
    names = [keys.log, keys.meta, keys.positions, keys.inbox("a0"), keys.blob("b"), keys.alive("trainer")]
    assert {name[: name.index("}") + 1] for name in names} == {f"{{swingshift:{keys.run}}}"}


@pytest.mark.parametrize("answers_lost", [1, 3])
def test_c_48_an_append_whose_answer_is_lost_is_in_the_log_once(world: RedisWorld, tmp_path: Path, answers_lost: int) -> None:
    with LossyProxy(world.url, tmp_path) as proxy, RedisLog.open(proxy.url, world.keys.run) as log:
        producer = log.attach("trainer", fact(started())).producer
        proxy.lose_answers(answers_lost)
        assert log.append(producer, steps(1, 2)) == 3
        assert proxy.answers_lost == answers_lost
        assert log.append(producer, steps(3, 1)) == 5
    assert [entry.at for entry in world.client().read(2, 10)] == [1, 2, 3]


def test_c_48_an_incarnation_whose_answer_is_lost_is_started_once(world: RedisWorld, tmp_path: Path) -> None:
    with LossyProxy(world.url, tmp_path) as proxy, RedisLog.open(proxy.url, world.keys.run) as log:
        proxy.lose_answers(1)
        attached = log.attach("trainer", fact(started()))
        assert (attached.producer.epoch, attached.position) == (1, 2)
        assert log.append(attached.producer, steps(1, 1)) == 3
        assert proxy.answers_lost == 1


def test_c_48_an_incarnation_that_is_replaced_before_its_retry_is_fenced_and_not_started_again(world: RedisWorld, tmp_path: Path) -> None:
    old, new = world.client(), world.client()
    arguments = script_arguments("attach", old.log_id, source="trainer")
    keys = [world.keys.log, world.keys.meta]
    assert world.server.run(APPEND, keys, arguments) == [b"ok", 2, 1]
    assert new.attach("trainer", fact(started())).producer.epoch == 2
    assert world.server.run(APPEND, keys, arguments) == [b"ok", 2, 1]
    assert old.last_position() == 3


def test_c_48_a_log_whose_answer_is_lost_is_created_once(server_url: str, run: str, tmp_path: Path) -> None:
    keys = [Keys(run).log, Keys(run).meta]
    arguments = script_arguments("create", "id")
    server = Connection(server_url)
    assert server.run(APPEND, keys, arguments) == [b"ok", 1, 0]
    assert server.run(APPEND, keys, arguments) == [b"ok", 1, 0]
    assert server.run(APPEND, keys, script_arguments("create", "another id")) == [b"exists"]
    assert server.call("XLEN", keys[0]) == 1
    server.close()


def test_a_command_with_arguments_missing_writes_nothing(world: RedisWorld) -> None:
    log = world.client()
    arguments = script_arguments("append", log.log_id)
    for cut in (arguments[:-1], [*arguments, b"more"]):
        assert world.server.run(APPEND, [world.keys.log, world.keys.meta], cut)[0] == b"malformed"
    assert log.last_position() == 1


def test_the_script_itself_refuses_a_large_body(world: RedisWorld) -> None:
    log = world.client()
    arguments = script_arguments("append", log.log_id, body=b"x" * 101)
    assert world.server.run(APPEND, [world.keys.log, world.keys.meta], arguments) == [b"large", 1, 101]
    assert log.last_position() == 1


def test_the_answers_kept_for_retries_are_those_of_the_newest_eight_thousand_clients(world: RedisWorld) -> None:
    log_id = world.client().log_id

    def append(client: str) -> int:
        reply = world.server.run(APPEND, [world.keys.log, world.keys.meta], script_arguments("append", log_id, client=client))
        return cast(int, reply[1])

    first = [append(f"early{number}") for number in range(5)]
    assert [append(f"early{number}") for number in range(5)] == first, "a retry is known"
    fields = cast(int, world.server.call("HLEN", world.keys.meta))
    world.server.call("HSET", world.keys.meta, "clients", 8192)  # as if so many had come
    for number in range(4):
        append(f"late{number}")
    assert cast(int, world.server.call("HLEN", world.keys.meta)) == fields, "each that comes takes the place of the oldest"
    assert append("early4") == first[4]
    assert append("early0") not in first


def test_a_server_that_forgot_the_script_gets_it_again(world: RedisWorld) -> None:
    log = world.client()
    world.server.call("SCRIPT", "FLUSH")
    assert log.append(OPERATOR, steps(1, 1)) == 2


def test_an_append_to_a_deleted_log_does_not_begin_a_new_one(world: RedisWorld) -> None:
    log = world.client()
    world.delete()
    with pytest.raises(LogMissing, match="deleted"):
        log.append(OPERATOR, steps(1, 1))
    with pytest.raises(LogMissing):
        log.attach("trainer", fact(started()))
    with pytest.raises(LogMissing):
        RedisLog.open(world.url, world.keys.run)
    assert world.server.call("EXISTS", world.keys.log, world.keys.meta) == 0


def assert_hears_of_the_deletion(world: RedisWorld, read: Callable[[], Sequence[Entry]]) -> None:
    """Who waits in `read` when the log is deleted."""
    thread, outcome = in_thread(read)
    blocked_client(world.server)
    world.delete()
    thread.join()
    (error,) = outcome
    assert isinstance(error, LogChanged)
    assert "the log is gone" in str(error)


def test_a_blocked_reader_of_a_deleted_log_does_not_wait_on_in_silence(world: RedisWorld) -> None:
    log = world.client()
    assert_hears_of_the_deletion(world, lambda: log.read(1, 10, LONG_BLOCK_MS))


def test_a_log_that_was_written_by_hand_takes_no_more_entries(world: RedisWorld) -> None:
    log = world.client()
    world.server.call("XADD", world.keys.log, "2-0", "kind", "StepDone")
    with pytest.raises(LogChanged, match="should be 1-0 and is 2-0"):
        log.append(OPERATOR, steps(1, 1))
    assert world.server.call("XLEN", world.keys.log) == 2


def test_a_log_whose_newest_entry_was_exchanged_takes_no_more_entries(world: RedisWorld) -> None:
    log = world.client()
    world.server.call("DEL", world.keys.log)
    world.server.call("XADD", world.keys.log, "1-0", *(part for pair in FIELDS.items() for part in pair))
    with pytest.raises(LogChanged, match="or is not as it was written"):
        log.append(OPERATOR, steps(1, 1))
    assert world.server.call("XLEN", world.keys.log) == 1


def test_an_inbox_that_is_ahead_of_its_log_takes_no_more_entries_and_neither_does_the_log(world: RedisWorld) -> None:
    log = world.client()
    world.server.call("XADD", world.keys.inbox("a0"), "9-0", "kind", "StepDone")
    with pytest.raises(LogChanged, match="9-0"):
        log.append(OPERATOR, [*steps(1, 1), fact(generation("1.0", "a0"))])
    assert log.last_position() == 1


def test_an_entry_deleted_from_the_middle_is_a_gap(world: RedisWorld) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 5))
    world.server.call("XDEL", world.keys.log, "4-0")
    assert positions(log.read(0, 3)) == [1, 2, 3]
    with pytest.raises(GapError, match="entries 4 to 4 "):
        log.read(3, 10)
    with pytest.raises(GapError, match="entries 4 to 4 "):
        log.read(0, 10)


FIELDS: dict[str, str | bytes] = {
    "kind": "StepDone", "version": "1", "source": "trainer", "epoch": "1", "derived": "0", "cause": "0", "at": "1", "chain": "c",
    "body": msgpack.packb({}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"kind": "NobodyKnows"}, "unknown kind 'NobodyKnows'"),
        ({"version": "99"}, "schema 99"),
        ({"version": "one"}, "one"),
        ({"body": b"\xc1"}, "cannot be read"),
        ({"body": msgpack.packb({"step": "three"})}, "cannot be read"),
        ({"source": b"\xff\xfe"}, "decode"),
        ({"another": "field"}, "not written by swingshift"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_by_its_position(world: RedisWorld, changed: dict[str, str | bytes], complaint: str) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 1))
    fields = [part for pair in (FIELDS | changed).items() for part in pair]
    world.server.call("XADD", world.keys.log, "3-0", *fields)
    assert positions(log.read(0, 2)) == [1, 2]
    with pytest.raises(CodecError, match=f"entry 3 .*{complaint}"):
        world.client().read(0, 10)


def test_client_kill_during_a_blocked_read_goes_unnoticed(world: RedisWorld) -> None:
    log, writer = world.client(), world.client()
    log.append(OPERATOR, steps(1, 1))
    assert positions(log.read(0, 10)) == [1, 2]
    thread, outcome = in_thread(lambda: log.read(2, 10, LONG_BLOCK_MS))
    for _ in range(3):
        assert world.server.call("CLIENT", "KILL", "ID", blocked_client(world.server)) == 1
    writer.append(OPERATOR, steps(2, 2))
    thread.join()
    assert positions(outcome) == [3, 4]


def test_a_blocked_reader_survives_a_restart_of_the_server(own_server: EmbeddedServer, run: str) -> None:
    with RedisLog.create(own_server.url, plan(run), at=1) as writer, RedisLog.open(own_server.url, run) as reader:
        writer.append(OPERATOR, steps(1, 1))
        assert positions(reader.read(0, 10)) == [1, 2]
        thread, outcome = in_thread(lambda: reader.read(2, 10, LONG_BLOCK_MS))
        server = Connection(own_server.url)
        blocked_client(server)
        server.close()
        own_server.close()
        own_server.start()
        assert writer.append(OPERATOR, steps(2, 2)) == 3
        thread.join()
        assert positions(outcome) == [3, 4]


def test_a_server_that_comes_back_with_an_older_log_is_noticed_by_reader_and_writer(
    own_server: EmbeddedServer, run: str, tmp_path: Path
) -> None:
    folder = tmp_path / "server" / "appendonlydir"
    with RedisLog.create(own_server.url, plan(run), at=1) as writer, RedisLog.open(own_server.url, run) as reader:
        own_server.close()
        shutil.copytree(folder, tmp_path / "backup")
        own_server.start()
        writer.append(OPERATOR, steps(1, 3))
        assert positions(reader.read(0, 10)) == [1, 2, 3, 4]
        thread, outcome = in_thread(lambda: reader.read(4, 10, LONG_BLOCK_MS))
        own_server.close()
        restore(tmp_path / "backup", folder)
        own_server.start()
        thread.join()
        (error,) = outcome
        assert isinstance(error, LogChanged)
        assert "ends at 1, this client knows it up to 4" in str(error)
        with pytest.raises(LogChanged, match="ends at 1"):
            writer.append(OPERATOR, steps(4, 1))


def test_after_a_reconnect_the_entry_at_the_readers_position_is_compared_first(
    own_server: EmbeddedServer, run: str, tmp_path: Path
) -> None:
    folder = tmp_path / "server" / "appendonlydir"
    RedisLog.create(own_server.url, plan(run), at=1).close()
    own_server.close()
    shutil.copytree(folder, tmp_path / "beginning")
    own_server.start()
    with RedisLog.open(own_server.url, run) as log:
        log.append(OPERATOR, steps(1, 3))
        assert positions(log.read(0, 10)) == [1, 2, 3, 4]
        own_server.close()
        restore(tmp_path / "beginning", folder)
        own_server.start()
        with RedisLog.open(own_server.url, run) as other:
            other.append(OPERATOR, steps(11, 6))
        with pytest.raises(LogChanged, match=r"entry 4 has chain .* rolled back and went on differently"):
            log.read(4, 10)


def test_an_idle_reader_keeps_its_connection(own_server: EmbeddedServer, run: str) -> None:
    server = Connection(own_server.url)
    with RedisLog.create(own_server.url, plan(run), at=1) as log:
        assert log.read(1, 10, 1) == []
        before = client_ids(server)
        assert log.read(1, 10, 1500) == []
        assert client_ids(server) == before
    server.close()


def test_a_server_that_stays_away_is_given_up_after_the_patience(own_server: EmbeddedServer, run: str) -> None:
    with RedisLog.create(own_server.url, plan(run), at=1, patience_s=0.1) as log:
        log.read(0, 10)
        own_server.close()
        with pytest.raises(LogUnavailable, match=r"no answer from unix://.* \(tried for 0\.1 s\)"):
            log.append(OPERATOR, steps(1, 1))
        with pytest.raises(LogUnavailable, match="no answer"):
            log.read(1, 10, 20)
        own_server.start()
        assert log.append(OPERATOR, steps(1, 1)) == 2
        assert positions(log.read(1, 10)) == [2]


def test_a_full_server_refuses_an_append_as_a_whole(own_server: EmbeddedServer, run: str) -> None:
    server = Connection(own_server.url)
    with RedisLog.create(own_server.url, plan(run), at=1, patience_s=0.1) as log:
        server.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerFull, match=r"is full: .*maxmemory.*; raise its limit .* or delete runs .*`swingshift purge RUN`"):
            log.append(OPERATOR, [fact(generation("1.0", "a0")), *steps(1, 3)])
        server.call("CONFIG", "SET", "maxmemory", "0")
        assert log.last_position() == 1
        assert log.append(OPERATOR, steps(1, 1)) == 2
    server.close()


@pytest.mark.parametrize("lost", [LossyProxy.lose_answers, LossyProxy.cut_answers])
def test_payloads_count_their_bytes_once_also_when_answers_are_lost_and_they_are_replaced(
    world: RedisWorld, tmp_path: Path, lost: Callable[[LossyProxy, int], None]
) -> None:
    payloads = {f"answer:{number}": b"x" * (700 * number) for number in range(40)}
    with LossyProxy(world.url, tmp_path) as proxy, closing(RedisBlobs(proxy.url, world.keys.run)) as blobs:
        blobs.put("answer:1", b"former, and of another length")
        world.server.call("SCRIPT", "FLUSH")
        lost(proxy, 2)
        blobs.put_many(payloads)
        assert proxy.answers_lost == 2
        assert blobs.get_many(list(payloads)) == payloads
        counted = world.server.call("HMGET", world.keys.size, "bytes", "payloads")
        stored = sum(KEY_BYTES + DIGEST_BYTES + len(world.keys.blob(name)) + len(data) for name, data in payloads.items())
        assert counted == [b"%d" % stored, b"40"]


@pytest.mark.parametrize("lost", [LossyProxy.lose_answers, LossyProxy.cut_answers])
def test_c_48_an_append_with_payloads_whose_answer_is_lost_is_there_once(
    world: RedisWorld, tmp_path: Path, lost: Callable[[LossyProxy, int], None]
) -> None:
    with LossyProxy(world.url, tmp_path) as proxy, RedisLog.open(proxy.url, world.keys.run) as log:
        lost(proxy, 1)
        assert log.append_with({"answer:1": b"data"}, OPERATOR, steps(1, 1)) == 2
        assert proxy.answers_lost == 1
        assert log.append_with({"answer:2": b"more"}, OPERATOR, steps(2, 1)) == 3
    assert world.blobs().get_many(["answer:1", "answer:2"]) == {"answer:1": b"data", "answer:2": b"more"}
    assert world.server.call("HGET", world.keys.size, "payloads") == b"2"


def test_what_was_removed_before_the_retry_of_its_append_is_not_stored_anew(world: RedisWorld, tmp_path: Path) -> None:
    blobs = world.blobs()
    with LossyProxy(world.url, tmp_path) as proxy, RedisLog.open(proxy.url, world.keys.run) as log:
        proxy.meanwhile = lambda: blobs.delete(["answer:1"])
        proxy.lose_answers(1)
        assert log.append_with({"answer:1": b"data"}, OPERATOR, steps(1, 1)) == 2
    assert blobs.get_many(["answer:1"]) == {}
    assert world.server.call("HMGET", world.keys.size, "bytes", "payloads") == [b"0", b"0"]


def test_a_server_that_forgot_the_script_counts_payloads_once_and_appends_once(world: RedisWorld) -> None:
    log = world.client()
    world.server.call("SCRIPT", "FLUSH")
    assert log.append_with({"answer:1": b"data"}, OPERATOR, steps(1, 1)) == 2
    assert world.server.call("HGET", world.keys.size, "payloads") == b"1"
    assert log.last_position() == 2


def test_a_full_server_refuses_payloads_and_entries_together(own_server: EmbeddedServer, run: str) -> None:
    with (
        RedisLog.create(own_server.url, plan(run), at=1, patience_s=0.1) as log,
        closing(Connection(own_server.url)) as server,
        closing(RedisBlobs(own_server.url, run)) as blobs,
    ):
        server.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerFull, match="is full"):
            log.append_with({"answer:1": b"data"}, OPERATOR, steps(1, 1))
        server.call("CONFIG", "SET", "maxmemory", "0")
        assert log.last_position() == 1
        assert blobs.get_many(["answer:1"]) == {}
        assert log.append_with({"answer:1": b"data"}, OPERATOR, steps(1, 1)) == 2
        assert blobs.get("answer:1") == b"data"


def test_a_reader_of_an_inbox_that_waits_finds_that_its_log_was_deleted_or_went_on_differently(world: RedisWorld) -> None:
    log, other = world.client(), world.client()
    world.save()
    log.append(OPERATOR, [fact(generation("1.0", "a0"))])
    assert positions(log.read_inbox("a0", 1, 10)) == [2]
    world.restore()
    other.append(OPERATOR, [fact(generation("2.0", "b0"))])
    with pytest.raises(LogChanged, match=r"entry 2 has chain .* went on differently"):
        log.read_inbox("a0", 2, 10, 20)
    assert_hears_of_the_deletion(world, lambda: other.read_inbox("b0", 2, 10, LONG_BLOCK_MS))


def test_large_batches_go_through_in_one_piece(world: RedisWorld) -> None:
    log = world.client()
    assert log.append(OPERATOR, steps(1, 20_000)) == 2
    assert log.last_position() == 20_001
    big = fact(RunPlanned(**dict(plan(world.keys.run)) | {"config": "x" * 250_000}))
    log.append(OPERATOR, [big] * 8)
    assert positions(log.read(20_001, 100)) == list(range(20_002, 20_010))


def test_an_inbox_that_was_trimmed_past_its_reader_is_a_gap(world: RedisWorld) -> None:
    log = world.client()
    log.append(OPERATOR, [fact(generation("1.0", "a0")), fact(generation("2.0", "b0")), fact(generation("3.0", "a0")), *steps(1, 2)])
    trimming = Trimming(world.url, world.keys.run, log.log_id)
    assert trimming.trim(3) == 3
    trimming.close()
    with pytest.raises(GapError, match="trimmed up to 2, this reader has read up to 1"):
        log.read_inbox("a0", 1, 10)
    assert positions(log.read_inbox("a0", 2, 10)) == [4]
    assert log.read_inbox("b0", 3, 10) == []


def test_trimming_goes_on_in_steps_until_it_is_done(world: RedisWorld) -> None:
    log = world.client()
    log.append(OPERATOR, steps(1, 25_000))
    trimming = Trimming(world.url, world.keys.run, log.log_id)
    assert trimming.trim(24_000) == 24_000
    assert trimming.trim(24_000) == 0
    assert world.server.call("XLEN", world.keys.log) == 1001
    trimming.close()


def test_a_hundred_inboxes_are_trimmed_and_measured_a_few_at_a_time(world: RedisWorld) -> None:
    log, names = world.client(), [f"r{number}" for number in range(120)]
    log.append(OPERATOR, [fact(generation(f"{turn}.0", name)) for turn in range(2) for name in names])
    inboxes = [world.keys.inbox(name) for name in names]
    with closing(Trimming(world.url, world.keys.run, log.log_id)) as trimming:
        assert trimming.trim(121) == 121
        assert sum(world.server.call("XLEN", inbox) == 1 for inbox in inboxes) == 100
        assert trimming.trim(121) == 0
        assert [world.server.call("XLEN", inbox) for inbox in inboxes] == [1] * 120
        with closing(MemoryUse(world.url, world.keys.run)) as memory:
            before = memory.measure().run
            log.append(OPERATOR, [fact(generation("3.0", name)) for name in names for _ in range(20)])
            grown = [memory.measure().run for _ in range(4)]
            assert grown == sorted(grown)
            assert before < grown[0] < grown[2] == grown[3]
        assert trimming.trim(241) == 120
        assert trimming.trim(241) == 0
        assert [world.server.call("XLEN", inbox) for inbox in inboxes] == [20] * 120


def test_inboxes_are_found_in_portions_among_what_is_known_of_clients(world: RedisWorld) -> None:
    names = [f"r{number}" for number in range(30)]
    fields = [part for number in range(5_000) for part in (f"client:{number}", "x")]
    world.client().append(OPERATOR, [fact(generation("1.0", name)) for name in names])
    world.server.call("HSET", world.keys.meta, *fields)
    inboxes = Inboxes(world.server, world.keys, patience_s=1.0)
    assert sorted(inboxes.names()) == sorted(names)
    world.client().append(OPERATOR, [fact(generation("2.0", "late"))])
    found = [set(inboxes.names()) for _ in range(60)]
    assert all(found[turn] <= found[turn + 1] for turn in range(59))
    assert found[-1] == {*names, "late"}


def test_trimming_leaves_another_log_alone(world: RedisWorld) -> None:
    log = world.client()
    trimming = Trimming(world.url, world.keys.run, log.log_id)
    world.recreate()
    world.client().append(OPERATOR, steps(1, 5))
    with pytest.raises(LogChanged, match=log.log_id):
        trimming.trim(3)
    world.delete()
    with pytest.raises(LogMissing):
        trimming.trim(3)
    trimming.close()


def test_the_positions_of_the_consumers_are_kept(world: RedisWorld) -> None:
    trimming = Trimming(world.url, world.keys.run, world.client().log_id)
    assert trimming.positions() == {}
    trimming.report("trainer", 3)
    trimming.report("archiver", 12)
    trimming.report("trainer", 7)
    assert trimming.positions() == {"trainer": 7, "archiver": 12}
    trimming.close()


def test_a_damaged_payload_is_refused(world: RedisWorld) -> None:
    blobs = RedisBlobs(world.url, world.keys.run)
    blobs.put("sample:1", b"0123456789")
    world.server.call("SETRANGE", world.keys.blob("sample:1"), 20, b"x")
    with pytest.raises(BlobMissing, match=f"was written with {blob_digest(b'0123456789')}"):
        blobs.get("sample:1")
    blobs.close()


def test_a_payload_whose_answer_is_lost_is_there(world: RedisWorld, tmp_path: Path) -> None:
    with LossyProxy(world.url, tmp_path) as proxy:
        blobs = RedisBlobs(proxy.url, world.keys.run)
        proxy.lose_answers(1)
        blobs.put("sample:1", b"data")
        assert blobs.get("sample:1") == b"data"
        assert proxy.answers_lost == 1
        blobs.close()


def test_a_service_shows_that_it_is_alive_as_long_as_it_runs(world: RedisWorld) -> None:
    run = world.keys.run
    assert living_epochs(world.server, run, ["trainer", "rollouter"]) == {}
    with Alive(world.url, run, "trainer", epoch=3, ttl_s=0.3):
        for _ in range(3):  # a value that was renewed outlives its first time to live
            world.server.call("PEXPIRE", world.keys.alive("trainer"), 150)
            while cast(int, world.server.call("PTTL", world.keys.alive("trainer"))) <= 150:
                pass
        assert living_epochs(world.server, run, ["trainer", "rollouter"]) == {"trainer": 3}
    assert living_epochs(world.server, run, ["trainer"]) == {}
    assert living_epochs(world.server, run, []) == {}


def test_a_dead_service_shows_no_sign_of_life_after_its_time(world: RedisWorld) -> None:
    alive = Alive(world.url, world.keys.run, "trainer", epoch=1, ttl_s=60)
    with alive:
        assert 0 < cast(int, world.server.call("PTTL", world.keys.alive("trainer"))) <= 60_000


def test_a_replaced_incarnation_does_not_speak_for_its_successor(world: RedisWorld) -> None:
    run = world.keys.run
    with Alive(world.url, run, "trainer", epoch=2):
        with Alive(world.url, run, "trainer", epoch=1):
            assert living_epochs(world.server, run, ["trainer"]) == {"trainer": 2}
        assert living_epochs(world.server, run, ["trainer"]) == {"trainer": 2}
    with Alive(world.url, run, "trainer", epoch=1), Alive(world.url, run, "trainer", epoch=2):
        assert living_epochs(world.server, run, ["trainer"]) == {"trainer": 2}


def test_a_client_refuses_a_large_entry_before_it_asks_the_server(own_server: EmbeddedServer, run: str) -> None:
    with RedisLog.create(own_server.url, plan(run), at=1, patience_s=0.1) as log:
        own_server.close()
        with pytest.raises(EntryTooLarge):
            log.append(OPERATOR, [fact(started("x" * 300_000))])
