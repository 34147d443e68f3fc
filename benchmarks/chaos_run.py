"""One run under fire: starts it as a user would, follows its log, kills as planned, resumes it, and waits for its end.

swingshift run ─▶ [ tail the log ─▶ aim hit, or time passed? SIGKILL ─▶ the victim is back? next ]* ─▶ exit status
        └── killed with everything ─▶ swingshift run --resume DIR ─▶ …
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.chaos_kills import MACHINE, REDIS, WHOLE, Kill
from benchmarks.chaos_processes import command_of, commands, is_service, kill_process, service_pids, working_folder
from benchmarks.chaos_shapes import Shape
from bus.connection import Connection
from bus.embedded import folder_url
from bus.entry import Entry
from bus.errors import ConfigError, LogError, LogMissing, ServerError
from bus.events import GenerationFinished, PolicyAttached, RunEnded, ServiceStarted
from bus.keys import Keys
from bus.memory_use import MemoryUse
from bus.recording import Recording
from bus.redis_log import RedisLog

READ_LIMIT = 512
BLOCK_MS = 20
AIM_PATIENCE_S = 4.0
"""How long an aim is waited for, in a run that generates; then the target is killed without it."""
WAITING_S = 6.0
"""How long the next kill waits for a victim to be back."""
BACK_S = 60.0
"""How long a victim may take to be back."""
STUCK_S = 90.0
"""How long a run may do nothing."""
SAMPLE_S = 0.25
"""Between two looks at what the run takes of the server's memory."""
SERVER = "server"

Say = Callable[[str], None]


class Broken(Exception):
    """The run did not do what it must."""


@dataclass(frozen=True, slots=True)
class Done:
    """A kill that was carried out."""

    kill: Kill
    position: int
    """The newest entry that was seen before it."""
    aimed: bool
    """Its aim was hit."""


@dataclass
class Fired:
    """What became of a run."""

    folder: Path
    kills: list[Done] = field(default_factory=list)
    resumes: int = 0
    payloads: list[int] = field(default_factory=list)
    """How many Redis held, every SAMPLE_S."""
    most_bytes: int = 0


class Attack:
    """Carries a plan out on one run, once."""

    def __init__(self, folder: Path, run: str, shape: Shape, kills: Sequence[Kill], say: Say) -> None:
        self._place = folder / run
        self._run = run
        self._shape = shape
        self._pending = list(kills)
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._log: RedisLog | None = None
        self._memory: MemoryUse | None = None
        self._connection: Connection | None = None
        self._position = 0
        self._moved_at = self._armed_at = self._killed_at = self._sampled_at = time.monotonic()
        self._waiting_for: str | None = None
        """The victim that is not back yet."""
        self._going_since: float | None = None
        """When the first answer came after the run was started or resumed."""
        self._pids: dict[str, int] = {}
        self.fired = Fired(self._place)

    def carry_out(self) -> Fired:
        """Runs it to its end. Raises Broken when it does not end in order; no process is left behind."""
        config = self._place.parent / f"{self._run}.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(yaml.safe_dump(self._shape.config))
        try:
            self._start([str(config), "--run", self._run, "--set", f"folder={self._place.parent}"])
            while (code := self._poll()) is None:
                self._look()
            if code != 0:
                raise Broken(f"the run ended with exit status {code}: {self._last_words()}")
        finally:
            self._close_log()
            if self._process is not None and self._process.poll() is None:
                self._kill_everything()
        return self.fired

    # --- the run's processes -------------------------------------------------------------------------------------------------------

    def _start(self, arguments: Sequence[str]) -> None:
        with (self._place.parent / f"{self._run}.out").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "swingshift", "run", "--no-verify", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=os.environ | {"REDIS_URL": ""},
            )  # fmt: skip
        self._armed_at = self._moved_at = time.monotonic()
        self._going_since = None

    def _poll(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _last_words(self) -> str:
        lines = (self._place.parent / f"{self._run}.out").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-6:])

    def _kill_everything(self) -> None:
        """The supervisor, and with it whoever ends with it; the server, too."""
        assert self._process is not None
        server = self._server_pid()
        processes = service_pids(self._run)
        self._process.kill()
        if server is not None:
            kill_process(server)
        self._process.wait()
        for pid in processes.values():
            kill_process(pid)
        deadline = time.monotonic() + BACK_S
        while service_pids(self._run):
            if time.monotonic() > deadline:
                raise Broken(f"services outlived their supervisor: {service_pids(self._run)}")
            time.sleep(0.02)

    def _service_pid(self, source: str) -> int | None:
        """If it lives: the number of one that is gone may be another's by now."""
        pid = self._pids.get(source)
        return pid if pid is not None and is_service(self._run, command_of(pid)) else None

    def _server_pid(self) -> int | None:
        folder = str(self._place / SERVER)
        return next((pid for pid, line in commands() if "-server " in line[0] and working_folder(pid) == folder), None)

    # --- the log -------------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for entry in self._read():
            self._position = entry.position
            self._moved_at = time.monotonic()
            self._take(entry)
        now = time.monotonic()
        if now - self._moved_at > STUCK_S:
            raise Broken(f"nothing happened for {STUCK_S:g} s after entry {self._position}: {self._last_words()}")
        if self._waiting_for is not None and now - self._killed_at > BACK_S:
            raise Broken(f"{self._waiting_for} is not back {BACK_S:g} s after it was killed: {self._last_words()}")
        self._fire_if_due(now)
        self._sample(now)

    def _read(self) -> list[Entry]:
        try:
            if self._log is None:
                self._open()
            return [] if self._log is None else self._log.read(self._position, READ_LIMIT, BLOCK_MS)
        except (LogError, ServerError, ConfigError):
            self._close_log()
            time.sleep(0.02)
            return []

    def _open(self) -> None:
        url = folder_url(self._place / SERVER)
        if url is None:
            time.sleep(0.02)
            return
        try:
            self._log = RedisLog.open(url, self._run, patience_s=0.1)
        except LogMissing:
            time.sleep(0.02)
            return
        self._memory = MemoryUse(url, self._run, patience_s=0.1)
        self._connection = Connection(url)
        if self._waiting_for == REDIS:
            self._back()
        # Behind a trimmed beginning, and not behind the end: what it was resumed from may be shorter than what was seen.
        self._position = min(self._position or self._log.last_position(), self._log.last_position())

    def _close_log(self) -> None:
        for client in (self._log, self._memory, self._connection):
            if client is not None:
                client.close()
        self._log = self._memory = self._connection = None

    def _take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case ServiceStarted() | PolicyAttached():
                self._pids = service_pids(self._run)
                if self._waiting_for in (entry.source, *WHOLE):
                    self._back()
            case RunEnded():
                self._pending = []
                self._waiting_for = None
            case GenerationFinished():
                self._going_since = self._going_since or time.monotonic()
            case _:
                pass
        kill = self._pending[0] if self._pending else None
        if kill is not None and kill.aim is not None and kill.aim.hit(event) and self._may_fire(kill):
            self._fire(aimed=True)

    def _back(self) -> None:
        self._waiting_for = None
        self._armed_at = time.monotonic()

    # --- the kills -----------------------------------------------------------------------------------------------------------------

    def _may_fire(self, kill: Kill) -> bool:
        if kill.target == MACHINE and not self._is_recorded():
            return False
        if kill.target in WHOLE and not kill.waits:
            return self._position > 0
        waited = time.monotonic() - self._killed_at > WAITING_S
        return self._position > 0 and bool(self._pids) and (self._waiting_for is None or not kill.waits or waited)

    def _is_recorded(self) -> bool:
        """There is something to go on with when all else is gone."""
        try:
            with Recording.open(self._place) as recording:
                return recording.last_position() > 0
        except (ConfigError, LogError):
            return False

    def _fire_if_due(self, now: float) -> None:
        kill = self._pending[0] if self._pending else None
        if kill is None or not self._may_fire(kill):
            return
        since = max(self._armed_at, self._killed_at)
        if kill.aim is None:
            due = now - since > kill.delay_s
        else:
            due = self._going_since is not None and now - max(since, self._going_since) > AIM_PATIENCE_S
        if due:
            self._fire(aimed=False)

    def _fire(self, *, aimed: bool) -> None:
        kill = self._pending.pop(0)
        if kill.target in WHOLE:
            self._strike_whole(kill)
        else:
            pid = self._server_pid() if kill.target == REDIS else self._service_pid(kill.target)
            if pid is None or not kill_process(pid):
                return  # it is not back since it was killed before
            if kill.target == REDIS:
                self._close_log()
            self._waiting_for = kill.target
        self._killed_at = time.monotonic()
        self.fired.kills.append(Done(kill, self._position, aimed))
        missed = "" if aimed or kill.aim is None else " (no such entry came)"
        self._say(f"{self._run}: kill {len(self.fired.kills)} at entry {self._position}: {kill}{missed}")

    def _strike_whole(self, kill: Kill) -> None:
        self._kill_everything()
        self._close_log()
        if kill.target == MACHINE:
            shutil.rmtree(self._place / SERVER, ignore_errors=True)
            shutil.rmtree(f"/dev/shm/swingshift-{self._run}", ignore_errors=True)
        self.fired.resumes += 1
        self._pids = {}
        self._start(["--resume", str(self._place)])
        self._waiting_for = kill.target

    def _sample(self, now: float) -> None:
        if self._memory is None or now - self._sampled_at < SAMPLE_S:
            return
        self._sampled_at = now
        try:
            self.fired.most_bytes = max(self.fired.most_bytes, self._memory.measure().run)
            self.fired.payloads.append(self._payloads())
        except (LogError, ServerError):
            return

    def _payloads(self) -> int:
        counted = self._connection.call("HGET", Keys(self._run).size, "payloads") if self._connection is not None else None
        return int(counted) if isinstance(counted, bytes) else 0
