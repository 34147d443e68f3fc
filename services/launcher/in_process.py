"""All services as threads of one process, for a debugger. Nobody can be killed, and nothing is pinned."""

from __future__ import annotations

import os
import threading

from services.entry import context_for, run_main
from services.launcher.protocol import Handle, RunPlace, ServiceSpec


class ThreadLauncher:
    """Starts services as threads."""

    def __init__(self, place: RunPlace) -> None:
        self._place = place

    def spawn(self, spec: ServiceSpec) -> Handle:
        return ThreadHandle(self._place, spec)


class ThreadHandle:
    """One thread."""

    def __init__(self, place: RunPlace, spec: ServiceSpec) -> None:
        self._place = place
        self._spec = spec
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, name=spec.source, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return os.getpid()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def terminate(self) -> None:
        """A thread cannot be told anything; the process ends with the main one."""

    def kill(self) -> bool:
        return False

    def _run(self) -> None:
        self._code = 1
        place, spec = self._place, self._spec
        self._code = run_main(
            context_for(
                spec.service, place.url, place.run, place.folder, spec.name,
                in_process=True, request=spec.request, candidate=spec.candidate, after=spec.after,
            )
        )  # fmt: skip
