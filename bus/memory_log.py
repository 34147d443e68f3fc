"""The log in memory: same contract as the Redis log; for tests, simulation and `--in-process` debugging.

`MemoryStore` is what is shared (the "server"); each client has its own `MemoryLog` on it.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bus import chain
from bus.blobs import blob_digest
from bus.codec import decode, encode
from bus.entry import Draft, Entry, Producer
from bus.errors import BlobMissing, Fenced, GapError, LogChanged, LogError
from bus.events import BlobRef, RunEnded, RunPlanned
from bus.log import WHATEVER, Attached
from bus.recording import Row


@dataclass
class MemoryStore:
    """What a server would hold of one run."""

    run: str
    log_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    entries: list[Entry] = field(default_factory=list)
    first: int = 1
    """Position of the oldest entry that was not trimmed."""
    epochs: dict[str, int] = field(default_factory=dict)
    answers: dict[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)
    """(source, epoch, client) -> (counter, first position) of the last append: what a retry is answered with."""
    inboxes: dict[str, list[Entry]] = field(default_factory=dict)
    ended_at: int = 0
    """Position of RunEnded."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    grown: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def create(cls, plan: RunPlanned, at: int) -> MemoryStore:
        """A new log whose first entry is `plan`."""
        store = cls(plan.run)
        store.write("supervisor", 0, [Draft(plan, derived=False, cause=0, at=at)])
        return store

    def write(self, source: str, epoch: int, drafts: Sequence[Draft]) -> int:
        """Appends without any check; returns the first position."""
        bodies = [encode(draft.event) for draft in drafts]
        first = self.first + len(self.entries)
        for position, (draft, body) in enumerate(zip(drafts, bodies, strict=True), first):
            event = decode(draft.event.kind, draft.event.schema_version, body)
            previous = self.entries[-1].chain if self.entries else chain.GENESIS
            digest = chain.link(
                previous, position, event.kind, event.schema_version, source, epoch, draft.derived, draft.cause, draft.at, body
            )
            entry = Entry(position, source, epoch, draft.derived, draft.cause, draft.at, digest, event)
            self.entries.append(entry)
            inbox = event.inbox()
            if isinstance(event, RunEnded):
                self.ended_at = position
            if inbox is not None:
                self.inboxes.setdefault(inbox, []).append(entry)
        return first

    def trim(self, up_to: int) -> None:
        """Forgets entries with positions up to and including `up_to`; the newest one always stays."""
        count = min(up_to - self.first + 1, len(self.entries) - 1)
        if count > 0:
            del self.entries[:count]
            self.first += count


class MemoryLog:
    """One client's view of a `MemoryStore`; see `bus.log.Log`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._log_id = store.log_id
        self._client = uuid.uuid4().hex
        self._counter = 0
        self._seen = 0
        self._ended_at = 0
        self._last_read: tuple[int, str] = (0, "")
        """Position and chain of the entry that this client read last."""

    @property
    def run(self) -> str:
        return self._store.run

    @property
    def log_id(self) -> str:
        return self._log_id

    def attach(self, source: str, draft: Draft, after: int = WHATEVER) -> Attached:
        with self._store.grown:
            self._check()
            current = self._store.epochs.get(source, 0)
            if after not in (WHATEVER, current):
                raise Fenced(f"{source} was to follow epoch {after}, epoch {current} has attached: this process must end")
            epoch = current + 1
            position = self._store.write(source, epoch, [draft])
            self._store.epochs[source] = epoch
            self._seen = max(self._seen, position)
            self._store.grown.notify_all()
        return Attached(Producer(source, epoch), position)

    def append(self, producer: Producer, drafts: Sequence[Draft]) -> int:
        self._counter += 1
        return self.append_numbered(producer, drafts, self._counter)

    def append_with(self, payloads: Mapping[str, bytes], producer: Producer, drafts: Sequence[Draft]) -> int:
        self._store.blobs.update(payloads)
        return self.append(producer, drafts)

    def append_numbered(self, producer: Producer, drafts: Sequence[Draft], counter: int) -> int:
        """One try of the append with this client's number `counter`; a retry with the same number is answered with the first position."""
        key = (producer.source, producer.epoch, self._client)
        with self._store.grown:
            self._check()
            current = self._store.epochs.get(producer.source, 0)
            if producer.epoch != 0 and producer.epoch != current:
                raise Fenced(f"{producer.source} epoch {producer.epoch} was replaced by epoch {current}: this process must end")
            answered = self._store.answers.get(key)
            if answered is not None and answered[0] == counter:
                return answered[1]
            if answered is not None and answered[0] > counter:
                raise LogError(f"append {counter} of this client came after its append {answered[0]}: one append at a time")
            position = self._store.write(producer.source, producer.epoch, drafts)
            self._seen = max(self._seen, position + len(drafts) - 1)
            self._store.answers[key] = (counter, position)
            self._store.grown.notify_all()
        return position

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        def look() -> list[Entry]:
            self._check(after)
            if after + 1 < self._store.first:
                raise GapError(
                    f"run {self.run}: this reader has read up to {after}, the next entry that is there is {self._store.first}: "
                    f"entries {after + 1} to {self._store.first - 1} were trimmed before it got them; read them from the recording"
                )
            start = after + 1 - self._store.first
            return self._store.entries[start : start + limit]

        return self._wait_for(look, block_ms)

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> list[Row]:
        """What `read` gives, as it is stored."""
        return [Row.of(entry) for entry in self.read(after, limit, block_ms)]

    def read_inbox(self, replica: str, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        def look() -> list[Entry]:
            self._check(after)
            self._ended_at = self._store.ended_at
            inbox = self._store.inboxes.get(replica, [])
            start = bisect_right(inbox, after, key=lambda entry: entry.position)
            return inbox[start : start + limit]

        return self._wait_for(look, block_ms)

    def _wait_for(self, look: Callable[[], list[Entry]], block_ms: int) -> list[Entry]:
        """What there is, as soon as there is any; nothing after so long."""
        deadline = time.monotonic() + block_ms / 1000
        with self._store.grown:
            while not (found := look()):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return []
                self._store.grown.wait(remaining)
            self._remember(found[-1])
            return found

    def goes_on_from(self, position: int, chain: str) -> None:
        """This client has got the entries up to `position`, whose chain is `chain`, from elsewhere: the next one read must follow on it."""
        self._last_read = (position, chain)
        self._seen = max(self._seen, position)

    def last_position(self) -> int:
        with self._store.grown:
            self._check()
            return self._store.first + len(self._store.entries) - 1

    def ended_at(self) -> int:
        return self._ended_at

    def _remember(self, entry: Entry) -> None:
        self._last_read = (entry.position, entry.chain)
        self._seen = max(self._seen, entry.position)

    def _check(self, after: int = 0) -> None:
        store = self._store
        if store.log_id != self._log_id:
            raise LogChanged(f"run {self.run}: the log is {store.log_id}, this client reads {self._log_id}: start this service anew")
        last, known = store.first + len(store.entries) - 1, max(self._seen, after)
        if last < known:
            raise LogChanged(f"run {self.run}: the log ends at {last}, this client knows it up to {known}: it was rolled back")
        position, digest = self._last_read
        if position >= store.first and store.entries[position - store.first].chain != digest:
            raise LogChanged(f"run {self.run}: entry {position} is not the one this client read: the log was rolled back and went on")


class MemoryBlobs:
    """Payloads in a `MemoryStore`; see `bus.log.Blobs`."""

    def __init__(self, store: MemoryStore) -> None:
        self._blobs = store.blobs

    def put(self, name: str, data: bytes) -> None:
        self._blobs[name] = data

    def put_many(self, payloads: Mapping[str, bytes]) -> None:
        self._blobs.update(payloads)

    def get(self, name: str) -> bytes:
        try:
            return self._blobs[name]
        except KeyError:
            raise BlobMissing(f"payload {name!r} is not there: it was removed after its last reader, or never written") from None

    def get_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those of `names` that are there."""
        return {name: self._blobs[name] for name in names if name in self._blobs}

    def get_refs(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        """By name, those that are there and have the digest that `refs` say."""
        wanted = {ref.name: ref.digest for ref in refs}
        return {name: data for name, data in self.get_many(list(wanted)).items() if wanted[name] == blob_digest(data)}

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._blobs.pop(name, None)
