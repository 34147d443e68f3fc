"""What is left on a node of a service whose actor has died: found by its process group and by a word in its environment, and killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from services.launcher.local import living_members, started_at
from services.launcher.on_ray.orders import Begun, Left, Remains

TOKEN_VARIABLE = "SWINGSHIFT_TOKEN"
"""In the environment of a service and of what it starts: which incarnation it is of."""
SWEEP_S = 5.0
"""How long one sweep waits for what it has killed to be gone."""
POLL_S = 0.02
EMPTY_LOOKS = 2
"""In a row that must find nobody: who is just becoming another program (exec) has no environment for a moment."""


def sweep(remains: str) -> str:
    """Kills what is left, and says what then still lives. Runs on the service's node."""
    wanted = Remains.model_validate_json(remains)
    give_up = time.monotonic() + SWEEP_S
    looks = 0
    living: list[int] = []
    while looks < EMPTY_LOOKS and time.monotonic() < give_up:
        living = living_remains(wanted)
        looks = 0 if living else looks + 1
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return Left(pids=tuple(living)).model_dump_json()


def living_remains(remains: Remains) -> list[int]:
    """Processes that are of this incarnation and have not ended."""
    of_group = living_members(remains.begun.pid) if remains.begun is not None and _is_still_its(remains.begun) else []
    return sorted({*of_group, *_with_token(remains.token)} - {os.getpid()})


def _is_still_its(begun: Begun) -> bool:
    """Nobody else has its number by now: one who has it has it as a leader, and began at another time."""
    leader = started_at(begun.pid)
    return leader is None or leader == begun.since


def _with_token(token: str) -> list[int]:
    """A process that set its own title may have lost the word: its group has it then."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended meanwhile, or is somebody else's
    return found
