"""Deadlines on a clock that is passed in: from when they count, and what a change of their seconds means."""

from __future__ import annotations

from bus.core import Deadline
from services.alarms import SAID_AGAIN_S, Alarms


def test_a_deadline_counts_from_when_it_was_named_first_and_is_told_once() -> None:
    alarms, due = Alarms(), [Deadline("wake:1", 5.0)]
    assert alarms.missed(due, 10.0) == []
    assert alarms.next_at(99.0) == 15.0
    assert alarms.missed(due, 14.9) == []
    assert alarms.missed(due, 15.0) == due
    assert alarms.missed(due, 16.0) == []
    assert alarms.missed(due, 15.0 + SAID_AGAIN_S) == due


def test_one_that_is_no_longer_named_is_forgotten() -> None:
    alarms, due = Alarms(), [Deadline("wake:1", 5.0)]
    alarms.missed(due, 10.0)
    assert alarms.missed([], 20.0) == []
    assert alarms.next_at(99.0) == 99.0
    assert alarms.missed(due, 20.0) == []
    assert alarms.next_at(99.0) == 25.0


def test_one_whose_seconds_change_still_counts_from_its_beginning() -> None:
    alarms = Alarms()
    alarms.missed([Deadline("lent:3", 600.0)], 10.0)
    assert alarms.missed([Deadline("lent:3", 20.0)], 15.0) == []
    assert alarms.next_at(99.0) == 30.0
    assert alarms.missed([Deadline("lent:3", 4.0)], 15.0) == [Deadline("lent:3", 4.0)], "a shorter one may have passed already"
    other = Alarms()
    other.missed([Deadline("lent:3", 5.0)], 10.0)
    assert other.missed([Deadline("lent:3", 50.0)], 15.0) == []
    assert other.next_at(99.0) == 60.0
