"""A quantity that keeps its value until it changes."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Series(Generic[T]):
    """Changes of a quantity, oldest first. Times are nanoseconds of the run's clock and never go back."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[T] = []

    def put(self, time: int, value: T) -> None:
        """From `time` on it is `value`; of several values at one time the last one counts."""
        if self.values and self.values[-1] == value:
            return
        if self.times and self.times[-1] == time:
            self.times.pop()
            self.values.pop()
            self.put(time, value)
            return
        self.times.append(time)
        self.values.append(value)
