"""Signs of life: `alive:<service>` holds the epoch of a service's incarnation and goes away when nobody renews it.

    Alive (a thread of the service) ─▶ renew.lua, three times within its time to live ─▶ alive:<service> ─▶ living_epochs (who watches)

Renewed from a thread of its own, so that a long training step or a long first request is not taken for death.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import cast

from bus.connection import Connection, Script
from bus.errors import LogUnavailable, ServerError
from bus.keys import Keys

logger = logging.getLogger(__name__)

RENEW = Script.load("renew.lua")
TTL_S = 10.0
RENEWALS_PER_TTL = 3


class Alive:
    """Keeps the sign of life of one incarnation while the `with` block runs."""

    def __init__(
        self, url: str, run: str, service: str, epoch: int, ttl_s: float = TTL_S, on_lapse: Callable[[], None] | None = None
    ) -> None:
        """`on_lapse` is called, in the renewing thread, when the sign could not be renewed for all of `ttl_s`: then others take this
        incarnation for gone."""
        self._connection = Connection(url, answer_s=ttl_s / RENEWALS_PER_TTL)
        self._key = Keys(run).alive(service)
        self._service = service
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._on_lapse = on_lapse
        self._renewed = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_ending, name=f"alive-{service}", daemon=True)

    def __enter__(self) -> Alive:
        """The sign is there when this returns, unless the server is away."""
        self._renew(self._ttl_s)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()
        self._renew(0.0)
        self._connection.close()

    def _renew_until_ending(self) -> None:
        while not self._ending.wait(self._ttl_s / RENEWALS_PER_TTL):
            self._renew(self._ttl_s)
            if self._on_lapse is not None and time.monotonic() - self._renewed > self._ttl_s:
                self._on_lapse()

    def _renew(self, ttl_s: float) -> None:
        """One try: the next one comes soon, and the service itself finds out on its own what a lost server means to it."""
        try:
            self._connection.run(RENEW, [self._key], [self._epoch, round(ttl_s * 1000)])
            self._renewed = time.monotonic()
        except (LogUnavailable, ServerError) as error:
            logger.warning("sign of life not renewed: service=%s epoch=%d error=%s", self._service, self._epoch, error)


def living_epochs(connection: Connection, run: str, services: Sequence[str]) -> dict[str, int]:
    """Service -> epoch of its living incarnation, of those of `services` that show a sign of life. Raises LogUnavailable."""
    if not services:
        return {}
    keys = Keys(run)
    values = cast("list[bytes | None]", connection.call("MGET", *(keys.alive(service) for service in services)))
    return {service: int(value) for service, value in zip(services, values, strict=True) if value is not None}
