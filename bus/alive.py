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
from bus.wire import Argument, Reply

logger = logging.getLogger(__name__)

RENEW = Script.load("renew.lua")
TTL_S = 10.0
RENEWALS_PER_TTL = 3


class Alive:
    """Keeps the sign of life of one incarnation while the `with` block runs."""

    def __init__(
        self,
        url: str,
        run: str,
        service: str,
        epoch: int,
        ttl_s: float = TTL_S,
        on_lapse: Callable[[], None] | None = None,
        watched: str | None = None,
    ) -> None:
        """`on_lapse` is called, in the renewing thread, when the sign could not be renewed for all of `ttl_s`: then others take this
        incarnation for gone. `watched`: another service, whose loss this one says in its own log."""
        self._run = run
        self._watched = Watched(watched, ttl_s) if watched is not None else None
        self._connection = Connection(url, answer_s=ttl_s / RENEWALS_PER_TTL)
        self._key = Keys(run).alive(service)
        self._service = service
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._on_lapse = on_lapse
        self._renewed = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_ending, name=f"alive-{service}", daemon=True)

    @property
    def watches(self) -> str | None:
        """The service whose loss this one says."""
        return None if self._watched is None else self._watched.service

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
            self._renew_and_look()
            if self._on_lapse is not None and time.monotonic() - self._renewed > self._ttl_s:
                self._on_lapse()

    def _renew_and_look(self) -> None:
        """Both in one exchange: a thousand of them are some work for the server."""
        if self._watched is None:
            self._renew(self._ttl_s)
            return
        renewing = ("EVALSHA", RENEW.digest, 1, self._key, *self._arguments(self._ttl_s))
        try:
            _, values = self._connection.exchange(renewing, _living(self._run, [self._watched.service]))
        except LogUnavailable as error:
            self._not_renewed(error)
        except ServerError:
            # One of the two was refused, or the server has lost the script: each by itself says which, and why.
            self._renew(self._ttl_s)
            self._look(self._watched)
        else:
            self._renewed = time.monotonic()
            self._watched.look(_epochs([self._watched.service], values).get(self._watched.service))

    def _look(self, watched: Watched) -> None:
        try:
            watched.look(living_epochs(self._connection, self._run, [watched.service]).get(watched.service))
        except LogUnavailable:
            return  # it may well be there
        except ServerError as error:
            logger.warning("signs of life of %s cannot be watched: error=%s", watched.service, error)
            self._watched = None

    def _renew(self, ttl_s: float) -> None:
        """One try: the next one comes soon, and the service itself finds out on its own what a lost server means to it."""
        try:
            self._connection.run(RENEW, [self._key], self._arguments(ttl_s))
            self._renewed = time.monotonic()
        except (LogUnavailable, ServerError) as error:
            self._not_renewed(error)

    def _arguments(self, ttl_s: float) -> list[Argument]:
        return [self._epoch, round(ttl_s * 1000)]

    def _not_renewed(self, error: Exception) -> None:
        logger.warning("sign of life not renewed: service=%s epoch=%d error=%s", self._service, self._epoch, error)


class Watched:
    """Another service's sign of life: what is there to say, in this process's log, when it goes and when it is back.

    An orderly end takes the sign away at once, so a loss is said only after it was missed for `grace_s`: by then an ended run is over.
    """

    def __init__(self, service: str, grace_s: float = TTL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.service = service
        self._grace_s = grace_s
        self._clock = clock
        self._epoch = 0
        """Newest that was seen; 0: none yet, it may be about to start."""
        self._missed_since: float | None = None
        self._said = False

    def look(self, epoch: int | None) -> None:
        """Takes in the epoch that shows a sign of life, None: none does."""
        now = self._clock()
        if epoch is not None:
            if self._said:
                logger.warning("%s is back: epoch=%d", self.service, epoch)
            self._epoch, self._missed_since, self._said = epoch, None, False
            return
        self._missed_since = now if self._missed_since is None else self._missed_since
        if self._epoch and not self._said and now - self._missed_since >= self._grace_s:
            self._said = True
            logger.error(
                "%s is lost: its epoch %d shows no sign of life; until it is started again nothing is decided that is its to decide",
                self.service, self._epoch,
            )  # fmt: skip


def living_epochs(connection: Connection, run: str, services: Sequence[str]) -> dict[str, int]:
    """Service -> epoch of its living incarnation, of those of `services` that show a sign of life. Raises LogUnavailable."""
    if not services:
        return {}
    return _epochs(services, connection.call(*_living(run, services)))


def _living(run: str, services: Sequence[str]) -> Sequence[Argument]:
    """The command that asks for their signs of life."""
    keys = Keys(run)
    return ("MGET", *(keys.alive(service) for service in services))


def _epochs(services: Sequence[str], reply: Reply) -> dict[str, int]:
    values = cast("list[bytes | None]", reply)
    return {service: int(value) for service, value in zip(services, values, strict=True) if value is not None}
