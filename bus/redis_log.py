"""The log of a run in a Redis Stream; see `bus.log.Log` for the contract.

append ─▶ append.lua: checks all, then writes ─▶ {swingshift:RUN}:log     one connection; repeats itself with the same counter;
                                                                          payloads that the entries name go before, in one transaction
read   ◀─ XREAD BLOCK ◀───────────────────────── {swingshift:RUN}:log     another one; each time it is new, and whenever nothing
                                                                          came: is this still the log that I know, as far as I know it?
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar, cast

from bus.codec import MAX_BYTES
from bus.connection import Connection, Script
from bus.entry import Draft, Entry, Producer
from bus.errors import ConfigError, EntryTooLarge, Fenced, GapError, LogChanged, LogError, LogMissing, SwingshiftError
from bus.events import RunPlanned
from bus.keys import RUNS, Keys
from bus.log import WHATEVER, Attached
from bus.patience import PATIENCE_S, Result, Waiting, persist
from bus.recording import Row
from bus.redis_blobs import as_stored, portions, storing
from bus.redis_place import Place
from bus.server_checks import check_room, connect
from bus.stream import Client, Mode, entry_of, position_of, row_of
from bus.wire import Argument, Reply

APPEND = Script.load("append.lua")
LONGEST_BLOCK_MS = 1000
"""A longer wait is cut into pieces. Between them the log's identity is checked, for a log that was deleted wakes nobody."""

Item = TypeVar("Item", Entry, Row)


class RedisLog:
    """One client's view of a run's log; `create` and `open` make one. Not thread-safe: one client a thread."""

    def __init__(self, url: str, keys: Keys, log_id: str, calls: Connection, patience_s: float) -> None:
        self.waiting: Waiting | None = None
        """Is told when this client waits for the server, and when it need not any more."""
        self._keys = keys
        self._log_id = log_id
        self._patience_s = patience_s
        self._calls = calls
        self._reads = Connection(url, answer_s=None)
        self._place_checked = False
        self._client = Client(keys, log_id, uuid.uuid4().hex)
        self._counter = 0
        self._ended_at = 0
        self._place = Place(keys, log_id)

    @classmethod
    def create(cls, url: str, plan: RunPlanned, at: int, patience_s: float = PATIENCE_S) -> RedisLog:
        """A new log whose first entry is `plan`. Raises ConfigError when this run has a log already, ServerError."""
        log = cls(url, Keys(plan.run), uuid.uuid4().hex, connect(url, patience_s), patience_s)
        check_room(log._calls)
        # Before the log itself: a run that is listed and not there is left out of the list, the other way round it would be lost.
        persist(lambda: log._calls.call("SADD", RUNS, log.run), patience_s)
        log._counter += 1
        log._submit("create", Producer("supervisor", 0), [Draft(plan, derived=False, cause=0, at=at)], log._counter)
        return log

    @classmethod
    def open(cls, url: str, run: str, patience_s: float = PATIENCE_S) -> RedisLog:
        """The log of an existing run. Raises LogMissing, ServerError."""
        keys = Keys(run)
        calls = connect(url, patience_s)
        log_id = persist(lambda: calls.call("HGET", keys.meta, "log"), patience_s)
        if not isinstance(log_id, bytes):
            calls.close()
            raise LogMissing(f"{calls.where} has no run {run!r}; `swingshift runs` lists those it has")
        return cls(url, keys, log_id.decode(), calls, patience_s)

    @property
    def run(self) -> str:
        return self._keys.run

    @property
    def log_id(self) -> str:
        return self._log_id

    def __enter__(self) -> RedisLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the log stays."""
        self._calls.close()
        self._reads.close()

    def attach(self, source: str, draft: Draft, after: int = WHATEVER) -> Attached:
        self._counter += 1
        position, epoch = self._submit("attach", Producer(source, after), [draft], self._counter)
        return Attached(Producer(source, epoch), position)

    def append(self, producer: Producer, drafts: Sequence[Draft]) -> int:
        self._counter += 1
        return self.append_numbered(producer, drafts, self._counter)

    def append_with(self, payloads: Mapping[str, bytes], producer: Producer, drafts: Sequence[Draft]) -> int:
        behind: Sequence[Sequence[Argument]] = ()
        for some in portions(payloads):
            if behind:
                self._persist(partial(self._calls.transact, *behind))
            behind = storing(self._keys.size, as_stored(self._keys, some))
        self._counter += 1
        return self._submit("append", producer, drafts, self._counter, behind)[0]

    def append_numbered(self, producer: Producer, drafts: Sequence[Draft], counter: int) -> int:
        """One append with this client's number `counter`; a retry with the same number is answered with the first position."""
        return self._submit("append", producer, drafts, counter)[0]

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        return self._read(entry_of, after, limit, block_ms)

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> list[Row]:
        """What `read` gives, as it is stored: also of kinds and schemas that this version of swingshift does not know."""
        return self._read(row_of, after, limit, block_ms)

    def _read(self, made: Callable[[str, Reply, str | None], Item], after: int, limit: int, block_ms: int) -> list[Item]:
        items = self._wait(after, block_ms, lambda piece_ms: self._look(after, limit, piece_ms))
        if not items:
            return []
        self._check_dense(after, items)
        previous = self._place.chain_at(after)
        if previous is None:
            self._place.check_end(self._ask(self._place.end_query())[0])
        found = [made(self.run, items[0], previous)]
        found += [made(self.run, item, None) for item in items[1:]]
        self._place.has_read(found[-1].position, found[-1].chain)
        return found

    def read_inbox(self, replica: str, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        items = self._wait(after, block_ms, lambda piece_ms: self._look_into(replica, after, limit, piece_ms))
        entries = [entry_of(self.run, item) for item in items]
        if entries:
            self._place.has_read(entries[-1].position, entries[-1].chain)
        return entries

    def goes_on_from(self, position: int, chain: str) -> None:
        """This client has got the entries up to `position`, whose chain is `chain`, from elsewhere: the next one read must follow on it."""
        self._place.has_read(position, chain)

    def last_position(self) -> int:
        return self._place.check_end(self._persist(lambda: self._calls.call(*self._place.end_query())))

    def ended_at(self) -> int:
        return self._ended_at

    def _persist(self, action: Callable[[], Result]) -> Result:
        return persist(action, self._patience_s, waiting=self.waiting)

    def _submit(
        self, mode: Mode, producer: Producer, drafts: Sequence[Draft], counter: int, behind: Sequence[Sequence[Argument]] = ()
    ) -> tuple[int, int]:
        """Calls the append script, `behind` other commands, until it answers; returns the first position and the epoch."""
        keys, arguments = self._client.append(mode, self._place.top, producer, drafts, counter)
        tried = False

        def once() -> list[Reply]:
            nonlocal tried
            # What a first try stored may have been read and removed since; nobody would remove it once more.
            alone = tried and self._has_answered(counter)
            tried = bool(behind)
            return self._calls.run(APPEND, keys, arguments, () if alone else behind)

        reply = self._persist(once)
        match reply:
            case [b"ok", int(first), int(epoch)]:
                self._place.knows(first + len(drafts) - 1)
                return first, epoch
            case _:
                raise self._refusal(producer, counter, reply)

    def _has_answered(self, counter: int) -> bool:
        """The server has carried out this client's append `counter`."""
        answer = self._calls.call("HGET", self._keys.meta, f"answer:{self._client.name}")
        return isinstance(answer, bytes) and int(answer.partition(b" ")[0]) == counter

    def _refusal(self, producer: Producer, counter: int, reply: Sequence[Reply]) -> SwingshiftError:
        """What the script's refusal means. Nothing was written."""
        reason, *values = [part.decode() if isinstance(part, bytes) else str(part) for part in reply]
        match reason, values:
            case "missing", _:
                return LogMissing(f"run {self.run}: the server has no log of it any more: it was deleted, or the server lost its data")
            case "exists", _:
                return ConfigError(
                    f"there is a run {self.run!r} on {self._calls.where} already: resume it, or choose another id with --run"
                )
            case "another", [log_id]:
                return self._place.is_another(log_id)
            case "behind", [last]:
                return self._place.was_rolled_back(int(last))
            case "torn", [last, newest]:
                return LogChanged(
                    f"run {self.run}: the newest entry should be {last}-0 and is {newest}, or is not as it was written: "
                    "somebody wrote to the keys by hand, or a backup was restored in part"
                )
            case "fenced", [epoch]:
                return Fenced(f"{producer.source} epoch {producer.epoch} was replaced by epoch {epoch}: this process must end")
            case "late", [answered]:
                return LogError(f"append {counter} of this client came after its append {answered}: one append at a time")
            case "large", [number, size]:
                return EntryTooLarge(
                    f"entry {number} of an append has a body of {size} bytes, the limit is {MAX_BYTES}: put the data into a blob"
                )
        return LogError(f"run {self.run}: the append script answered {reply}: client and server do not fit, please report it")

    def _wait(self, after: int, block_ms: int, look: Callable[[int], list[Reply]]) -> list[Reply]:
        """Items with positions over `after`, which `look` finds; with none there, waits for them."""
        self._place.knows(after)
        deadline = time.monotonic() + block_ms / 1000
        while True:
            rest_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
            items = look(min(rest_ms, LONGEST_BLOCK_MS))
            if items or rest_ms <= LONGEST_BLOCK_MS:
                return items

    def _look(self, after: int, limit: int, block_ms: int) -> list[Reply]:
        """Items of the log. Where there are none it is one exchange more: is it still the log that this client knows?"""
        (reply,) = self._ask(_xread(self._keys.log, after, limit, block_ms))
        items = _items(reply)
        if not items:
            self._persist(self._check_place)
        return items

    def _look_into(self, replica: str, after: int, limit: int, block_ms: int) -> list[Reply]:
        """Items of an inbox. Whether it is still the log that this client knows is asked behind, so that a thousand replicas that wait
        cost the server a wake-up each."""
        xread = _xread(self._keys.inbox(replica), after, limit, block_ms)
        reply, facts, *entry = self._ask(xread, self._place.end_query(f"trimmed:{replica}", "ended"), *self._place.entry_query())
        known, last, trimmed, ended = cast("list[bytes | None]", facts)
        self._place.check_end([known, last])
        self._place.check_entry(entry)
        self._ended_at = 0 if ended is None else int(ended)
        if trimmed is not None and int(trimmed) > after:
            raise GapError(
                f"run {self.run}: the inbox of {replica} was trimmed up to {int(trimmed)}, this reader has read up to {after}: "
                "restart the replica"
            )
        return _items(reply)

    def _ask(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Commands on the reading connection, after checking, when that is a new one, that what this client read is still there."""

        def once() -> list[Reply]:
            if not self._reads.is_open or not self._place_checked:
                self._place_checked = False
                self._check_place()
                self._place_checked = True
            return self._reads.exchange(*commands)

        return self._persist(once)

    def _check_place(self) -> None:
        """Raises LogChanged when the log is another one, ends before what this client knows, or holds another entry where it read last."""
        end, *entry = self._reads.exchange(self._place.end_query(), *self._place.entry_query())
        self._place.check_end(end)
        self._place.check_entry(entry)

    def _check_dense(self, after: int, items: Sequence[Reply]) -> None:
        if position_of(items[0]) == after + 1 and position_of(items[-1]) == after + len(items):
            return
        missing, found = next((want, got) for want, got in enumerate(map(position_of, items), after + 1) if want != got)
        raise GapError(
            f"run {self.run}: this reader has read up to {missing - 1}, the next entry that is there is {found}: "
            f"entries {missing} to {found - 1} were trimmed before it got them; read them from the recording"
        )


def _xread(key: str, after: int, limit: int, block_ms: int) -> Sequence[Argument]:
    block = ("BLOCK", block_ms) if block_ms else ()
    return ("XREAD", "COUNT", limit, *block, "STREAMS", key, f"{after}-0")


def _items(reply: Reply) -> list[Reply]:
    """Of the one stream that an XREAD was about."""
    return [] if reply is None else cast("list[tuple[bytes, list[Reply]]]", reply)[0][1]
