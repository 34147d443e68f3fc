"""The log of a run in a Redis Stream; see `bus.log.Log` for the contract.

append ─▶ append.lua: checks all, then writes ─▶ {swingshift:RUN}:log     one connection; repeats itself with the same counter
read   ◀─ XREAD BLOCK ◀───────────────────────── {swingshift:RUN}:log     another one; each time it is new, and whenever nothing
                                                                          came: is this still the log that I know, as far as I know it?
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar, cast

from bus.codec import MAX_BYTES
from bus.connection import PATIENCE_S, Argument, Connection, Reply, Result, Script, Waiting, check_room, connect, persist
from bus.entry import Draft, Entry, Producer
from bus.errors import ConfigError, EntryTooLarge, Fenced, GapError, LogChanged, LogError, LogMissing, SwingshiftError
from bus.events import RunPlanned
from bus.keys import RUNS, Keys
from bus.log import WHATEVER, Attached
from bus.recording import Row
from bus.stream import Client, Mode, chain_of, entry_of, position_of, row_of

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
        self._top = 0
        """Highest position that this client knows: it read or wrote it, or was asked for what comes after it."""
        self._ended_at = 0
        self._last_read: tuple[int, str] = (0, "")
        """Position and chain of the entry that this client read last."""

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

    def append_numbered(self, producer: Producer, drafts: Sequence[Draft], counter: int) -> int:
        """One append with this client's number `counter`; a retry with the same number is answered with the first position."""
        return self._submit("append", producer, drafts, counter)[0]

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        return self._read(entry_of, after, limit, block_ms)

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> list[Row]:
        """What `read` gives, as it is stored: also of kinds and schemas that this version of swingshift does not know."""
        return self._read(row_of, after, limit, block_ms)

    def _read(self, made: Callable[[str, Reply, str | None], Item], after: int, limit: int, block_ms: int) -> list[Item]:
        items = self._wait(self._keys.log, after, limit, block_ms)
        if not items:
            return []
        self._check_dense(after, items)
        follows = after > 0 and after == self._last_read[0]
        if not follows:
            self._check_end(self._ask(*self._end_query()))
        found = [made(self.run, items[0], self._last_read[1] if follows else None)]
        found += [made(self.run, item, None) for item in items[1:]]
        self._remember(found[-1])
        return found

    def read_inbox(self, replica: str, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        items = self._wait(self._keys.inbox(replica), after, limit, block_ms)
        known, last, trimmed, ended = cast("list[bytes | None]", self._ask(*self._end_query(), f"trimmed:{replica}", "ended"))
        self._check_end([known, last])
        self._ended_at = 0 if ended is None else int(ended)
        if trimmed is not None and int(trimmed) > after:
            raise GapError(
                f"run {self.run}: the inbox of {replica} was trimmed up to {int(trimmed)}, this reader has read up to {after}: "
                "restart the replica"
            )
        entries = [entry_of(self.run, item) for item in items]
        if entries:
            self._remember(entries[-1])
        return entries

    def goes_on_from(self, position: int, chain: str) -> None:
        """This client has got the entries up to `position`, whose chain is `chain`, from elsewhere: the next one read must follow on it."""
        self._last_read = (position, chain)
        self._top = max(self._top, position)

    def last_position(self) -> int:
        return self._check_end(self._persist(lambda: self._calls.call(*self._end_query())))

    def ended_at(self) -> int:
        return self._ended_at

    def _persist(self, action: Callable[[], Result]) -> Result:
        return persist(action, self._patience_s, waiting=self.waiting)

    def _submit(self, mode: Mode, producer: Producer, drafts: Sequence[Draft], counter: int) -> tuple[int, int]:
        """Calls the append script until it answers; returns the first position and the epoch."""
        keys, arguments = self._client.append(mode, self._top, producer, drafts, counter)
        reply = self._persist(lambda: self._calls.run(APPEND, keys, arguments))
        match reply:
            case [b"ok", int(first), int(epoch)]:
                self._top = max(self._top, first + len(drafts) - 1)
                return first, epoch
            case _:
                raise self._refusal(producer, counter, reply)

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
                return self._is_another(log_id)
            case "behind", [last]:
                return self._was_rolled_back(int(last))
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

    def _wait(self, key: str, after: int, limit: int, block_ms: int) -> list[Reply]:
        """Items with positions over `after`; with none there, waits for them."""
        self._top = max(self._top, after)
        deadline = time.monotonic() + block_ms / 1000
        while True:
            rest_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
            block = ("BLOCK", min(rest_ms, LONGEST_BLOCK_MS)) if rest_ms else ()
            reply = self._ask("XREAD", "COUNT", limit, *block, "STREAMS", key, f"{after}-0")
            if reply is not None:
                return cast("list[tuple[bytes, list[Reply]]]", reply)[0][1]
            self._persist(self._check_place)
            if rest_ms <= LONGEST_BLOCK_MS:
                return []

    def _ask(self, *arguments: Argument) -> Reply:
        """A command on the reading connection, after checking, when that is a new one, that what this client read is still there."""

        def once() -> Reply:
            if not self._reads.is_open or not self._place_checked:
                self._place_checked = False
                self._check_place()
                self._place_checked = True
            return self._reads.call(*arguments)

        return self._persist(once)

    def _check_place(self) -> None:
        """Raises LogChanged when the log is another one, ends before what this client knows, or holds another entry where it read last."""
        self._check_end(self._reads.call(*self._end_query()))
        position, chain = self._last_read
        if position == 0:
            return
        items = cast("list[Reply]", self._reads.call("XRANGE", self._keys.log, f"{position}-0", f"{position}-0"))
        if items and chain_of(items[0]) != chain:
            raise LogChanged(
                f"run {self.run}: entry {position} has chain {chain_of(items[0])}, this client read {chain}: the log was rolled back and "
                "went on differently; start this service anew"
            )

    def _end_query(self) -> tuple[str, ...]:
        return "HMGET", self._keys.meta, "log", "position"

    def _check_end(self, reply: Reply) -> int:
        """Position of the newest entry. Raises LogChanged when the log is gone, another one, or shorter than what was read."""
        known, last = cast("list[bytes | None]", reply)
        if known is None or last is None:
            raise LogChanged(f"run {self.run}: the log is gone, this client knows it up to {self._top}: it was deleted")
        if known.decode() != self._log_id:
            raise self._is_another(known.decode())
        if int(last) < self._top:
            raise self._was_rolled_back(int(last))
        return int(last)

    def _check_dense(self, after: int, items: Sequence[Reply]) -> None:
        if position_of(items[0]) == after + 1 and position_of(items[-1]) == after + len(items):
            return
        missing, found = next((want, got) for want, got in enumerate(map(position_of, items), after + 1) if want != got)
        raise GapError(
            f"run {self.run}: this reader has read up to {missing - 1}, the next entry that is there is {found}: "
            f"entries {missing} to {found - 1} were trimmed before it got them; read them from the recording"
        )

    def _remember(self, entry: Entry | Row) -> None:
        self._last_read = (entry.position, entry.chain)
        self._top = max(self._top, entry.position)

    def _is_another(self, log_id: str) -> LogChanged:
        return LogChanged(
            f"run {self.run}: the log is {log_id}, this client knows {self._log_id}: it was recreated; start this service anew"
        )

    def _was_rolled_back(self, last: int) -> LogChanged:
        return LogChanged(f"run {self.run}: the log ends at {last}, this client knows it up to {self._top}: it was rolled back")
