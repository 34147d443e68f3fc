"""What the exit code of a service's process says to whoever started it."""

from __future__ import annotations

ENDED = 0
"""In order."""
FAILED = 1
"""Whatever it was, its log says it; it may be tried again."""
MISTAKEN = 2
"""It cannot do what it was told, however often it is tried."""
FENCED = 3
"""A newer incarnation has taken its place."""
KILLED = 4
"""A replica that was told to, with a KillRequested."""
LAPSED = 5
"""A replica whose lease has ended."""
