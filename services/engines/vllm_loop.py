"""The event loop that a vLLM lives in: a thread of its own, called from others. Nothing of it is there before `start`, or after `stop`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

from bus.errors import EngineError

T = TypeVar("T")


class VllmLoop:
    """Started once, stopped once."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cancel: Callable[[], object] = lambda: None

    @property
    def started(self) -> bool:
        """Whether it can be called."""
        return self._loop is not None

    def start(self) -> None:
        """From now on it can be called."""
        assert self._loop is None, "a loop is started once"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()

    def call(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        """Runs it on the loop. Raises EngineError when it does not end in time, or with any error."""
        if self._loop is None:
            coroutine.close()
            raise EngineError(f"{what} was asked of a vLLM that was not started, or that has been closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._cancel = future.cancel
        began = time.monotonic()
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError as error:
            raise EngineError(f"{what} was interrupted") from error
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            waited = time.monotonic() - began
            raise EngineError(f"{what} has not ended after {waited:.1f} s: kill the replica") from error
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{what} failed in vLLM: {type(error).__name__}: {error}") from error

    def interrupt(self) -> None:
        """The call that another thread waits for ends as failed, if it has not ended."""
        self._cancel()

    def post(self, action: Callable[[], object]) -> None:
        """Runs it on the loop, soon."""
        assert self._loop is not None, "a loop is started before it is called"
        self._loop.call_soon_threadsafe(action)

    def stop(self, within_s: float) -> bool:
        """What it still waits for never ends. Whether its thread has ended: one that hangs may be asked again, or left alone."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return True
        loop.call_soon_threadsafe(loop.stop)
        thread.join(within_s)
        if thread.is_alive():
            return False
        self._loop = self._thread = None
        loop.close()
        return True
