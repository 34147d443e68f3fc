"""Events of the monitor: what it computed from the log, for people and their tools. No core reads them."""

from __future__ import annotations

from typing import ClassVar

from bus.events.base import Event, Role


class Measured(Event):
    """Measures of one training step, from the end of the step before to its own end; names with slashes. monitor -> nobody."""

    kind: ClassVar[str] = "Measured"
    emitter: ClassVar[Role | None] = "monitor"
    step: int
    values: dict[str, float]
    """What cannot be measured is left out."""
