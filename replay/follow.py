"""How somebody watches a long check: it hands its items over on their way. `replay.bar.Bar.follow_to` shows a bar, tests show nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Follow(Protocol):
    """Gives back the same items, while somebody is shown at which place of `total` each is."""

    def __call__(self, items: Iterable[T], what: str, total: int, place: Callable[[T], int]) -> Iterable[T]: ...


def unwatched(items: Iterable[T], what: str, total: int, place: Callable[[T], int]) -> Iterable[T]:
    """Nobody watches."""
    return items
