"""Of a long wait it is told, and not all the time."""

from __future__ import annotations

from services.telling import Telling


def test_a_short_wait_is_not_told_and_a_long_one_once_in_a_while() -> None:
    now = [100.0]
    telling = Telling(2.0, 10.0, lambda: now[0])
    told = []
    for second in range(30):
        now[0] = 100.0 + second
        if telling.is_due():
            told.append(telling.waited_s)
    assert told == [2.0, 12.0, 22.0]
    assert telling.rest_s == 3.0


def test_one_that_begins_at_once_is_told_at_once() -> None:
    telling = Telling(0.0, 10.0, lambda: 5.0)
    assert [telling.is_due(), telling.is_due()] == [True, False]


def test_it_is_told_late_when_nobody_asked_in_time_and_then_not_twice() -> None:
    now = [0.0]
    telling = Telling(2.0, 10.0, lambda: now[0])
    now[0] = 25.0
    assert [telling.is_due(), telling.is_due()] == [True, False]
    assert telling.rest_s == 10.0
