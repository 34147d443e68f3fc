"""All services as threads of one process, for a debugger. Nobody can be killed, and nothing is pinned."""

from __future__ import annotations

import logging
import threading

from bus.errors import SwingshiftError
from services.entry import context_for, run_main
from services.exit_codes import FAILED
from services.launcher.endings import how_it_ended
from services.launcher.protocol import Handle, RunPlace, ServiceSpec

logger = logging.getLogger(__name__)


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

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def terminate(self) -> None:
        """A thread cannot be told anything; the process ends with the main one."""

    def kill(self) -> bool:
        return False

    def waits_for(self) -> str:
        return ""

    def how_it_ended(self) -> str:
        assert self._code is not None
        return how_it_ended(self._place, self._spec.log_name, self._code)

    def _run(self) -> None:
        self._code = FAILED
        place, spec = self._place, self._spec
        try:
            context = context_for(place, spec, in_process=True)
        except SwingshiftError:
            logger.exception("cannot start: service=%s run=%s", spec.source, place.run)
            return
        self._code = run_main(context)
