"""Which requests an engine has in flight, and the one output that each of them gets.

    submit ──add──▶ in flight ──finish──▶ outputs ──take──▶ poll
                        └──fail──▶ an `error` output for each, and EngineError from every later call

The engines keep their promise "one output per id, never silence" here, so that it is kept in one place.
"""

from __future__ import annotations

import threading
from collections import deque

from bus.errors import EngineError
from services.engines.protocol import GenerateOutput


class Docket:
    """Made for several threads: every method takes `changed`, which its engine may hold already and uses as its own lock."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        """Notified whenever something is finished, fails or closes; an engine may notify it for its own reasons, too."""
        self._in_flight: set[str] = set()
        self._outputs: deque[GenerateOutput] = deque()
        self._failure: str | None = None
        self._closed = False

    def add(self, request: str) -> None:
        """Puts a request in flight. Raises EngineError if it is there already, or if the engine is at an end."""
        with self.changed:
            self.check()
            if request in self._in_flight:
                raise EngineError(f"request {request} was submitted again while in flight: give every attempt an id of its own")
            self._in_flight.add(request)

    def finish(self, output: GenerateOutput) -> None:
        """Ends a request that is in flight with its output."""
        with self.changed:
            self._in_flight.remove(output.request)
            self._outputs.append(output)
            self.changed.notify_all()

    def fail(self, reason: str) -> None:
        """Ends everything in flight with `error`: from now on every call raises EngineError with this reason. The first reason stays."""
        with self.changed:
            if self._failure is None:
                self._failure = reason
            for request in sorted(self._in_flight):
                self.finish(GenerateOutput(request, "error", error=reason))
            self.changed.notify_all()

    def close(self) -> None:
        """Ends the service; the caller has finished what was in flight."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def check(self) -> None:
        """Raises EngineError if the engine has failed or was closed."""
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure}; restart the replica")
        if self._closed:
            raise EngineError("the engine is closed: build a new one")

    def take(self, timeout_s: float) -> list[GenerateOutput]:
        """All outputs that are there, after waiting at most so long for the first. Raises EngineError if none can come any more."""
        with self.changed:
            if not self._outputs:
                self.changed.wait_for(lambda: self._outputs or self._failure is not None or self._closed, timeout_s)
            if not self._outputs:
                self.check()
            outputs = list(self._outputs)
            self._outputs.clear()
            return outputs

    def wait_until_empty(self, timeout_s: float) -> None:
        """Returns when nothing is in flight. Raises EngineError after so long."""
        with self.changed:
            if not self.changed.wait_for(lambda: not self._in_flight, timeout_s):
                raise EngineError(f"{len(self._in_flight)} requests are still in flight after {timeout_s} s: kill the replica")

    def __len__(self) -> int:
        return len(self._in_flight)

    def __contains__(self, request: str) -> bool:
        return request in self._in_flight
