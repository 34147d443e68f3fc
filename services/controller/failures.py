"""Samples that fail, or are filtered, one after the other: one is dropped and replaced, but if all are, nobody would ever hear of it."""

from __future__ import annotations

from bus.events import Event, SampleDropped, SampleReady
from bus.settings import Settings


class Failures:
    """Counts `SampleDropped(failed)` and `(filtered)` with nothing better in between; as many in a row as the plan allows end the run.

    `settings`: a fold that is fed by somebody else.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failed = self._filtered = 0
        self._newest = ""

    def apply(self, event: Event) -> None:
        """Takes in one event; only samples that failed, or were scored, matter."""
        match event:
            case SampleDropped(reason="failed"):
                self._failed += 1
                self._newest = event.detail
            case SampleDropped(reason="filtered"):
                self._failed = 0
                self._filtered += 1
                self._newest = event.detail
            case SampleReady():
                self._failed = self._filtered = 0
            case _:
                pass

    @property
    def verdict(self) -> str:
        """Why the run cannot go on, with the newest failure; empty if it can."""
        plan = self._settings.plan
        if plan is None:
            return ""
        if self._failed >= plan.max_failed_samples_in_a_row:
            return f"{self._failed} samples failed one after the other, none was scored in between; the last one: {self._newest}"
        if self._filtered >= plan.max_filtered_samples_in_a_row:
            return f"{self._filtered} samples were filtered one after the other; the last one: {self._newest}"
        return ""
