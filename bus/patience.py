"""How long a client tries again after it lost the server, and who is told meanwhile."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from bus.errors import LogUnavailable, ServerFull

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 30.0
"""How long a client tries again after it lost the server."""
FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
TOLD_AFTER_S = 1.0
"""How long a server may be away before a user is told that it is waited for."""

Waiting = Callable[[LogUnavailable | None, float], None]
"""Is told that the server is waited for: why, and for how many seconds more; None: it answers again."""


def persist(
    action: Callable[[], Result],
    patience_s: float,
    waits_for: type[LogUnavailable] = LogUnavailable,
    waiting: Waiting | None = None,
) -> Result:
    """Repeats `action` while it raises `waits_for`, with growing pauses; lets it through when `patience_s` have passed since the first."""
    give_up = math.inf
    delay = FIRST_DELAY_S
    told = False
    while True:
        try:
            result = action()
        except waits_for as error:
            if isinstance(error, ServerFull) and math.isinf(give_up):
                logger.warning("waiting for room, for at most %g s: %s", patience_s, error)
            give_up = min(give_up, time.monotonic() + patience_s)
            left_s = give_up - time.monotonic()
            if delay > left_s:
                raise type(error)(f"{error} (tried for {patience_s:g} s)") from error
            if waiting is not None and not told and patience_s - left_s >= TOLD_AFTER_S:
                told = True
                waiting(error, left_s)
        else:
            if told and waiting is not None:
                waiting(None, patience_s)
            return result
        time.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY_S)
