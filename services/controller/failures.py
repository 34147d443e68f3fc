"""Samples that fail, or are filtered, one after the other: one is dropped and replaced, but if all are, nobody would ever hear of it."""

from __future__ import annotations

from bus.events import Event, RunPlanned, SampleDropped, SampleReady


class Failures:
    """Counts `SampleDropped(failed)` and `(filtered)` with nothing better in between; as many in a row as the plan allows end the run."""

    def __init__(self) -> None:
        self._most_failed = self._most_filtered = 0
        """0: no plan has been seen."""
        self._failed = self._filtered = 0
        self._newest = ""

    def apply(self, event: Event) -> None:
        """Takes in one event; only samples that failed, or were scored, matter."""
        match event:
            case RunPlanned():
                self._most_failed = event.max_failed_samples_in_a_row
                self._most_filtered = event.max_filtered_samples_in_a_row
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
        if 0 < self._most_failed <= self._failed:
            return f"{self._failed} samples failed one after the other, none was scored in between; the last one: {self._newest}"
        if 0 < self._most_filtered <= self._filtered:
            return f"{self._filtered} samples were filtered one after the other; the last one: {self._newest}"
        return ""
