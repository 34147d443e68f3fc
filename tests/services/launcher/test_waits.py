"""What the user is told of services that wait for a place."""

from __future__ import annotations

from services.launcher.waits import TELL_AFTER_S, Waits


class Waiting:
    """An incarnation that waits for something, or for nothing."""

    def __init__(self, what: str) -> None:
        self.what = what

    def poll(self) -> int | None:
        return None

    def terminate(self) -> None: ...

    def kill(self) -> bool:
        return True

    def waits_for(self) -> str:
        return self.what

    def how_it_ended(self) -> str:
        return ""


def test_a_wait_is_told_once_it_is_long_and_again_when_it_is_over() -> None:
    said: list[str] = []
    waits, handle = Waits(said.append), Waiting("a node with 1 GPU")
    for now in (0.0, TELL_AFTER_S - 0.1):
        waits.look([("trainer", handle)], now)
        assert said == []
    for now in (TELL_AFTER_S, 60.0):
        waits.look([("trainer", handle)], now)
    assert said == ["trainer waits for a node with 1 GPU, for 10 s so far"]
    handle.what = ""
    waits.look([("trainer", handle)], 61.0)
    waits.look([("trainer", handle)], 62.0)
    assert said[1:] == ["trainer has its place, after 61 s"]


def test_what_starts_at_once_is_not_told() -> None:
    said: list[str] = []
    waits, handle = Waits(said.append), Waiting("a node")
    waits.look([("trainer", handle)], 0.0)
    handle.what = ""
    waits.look([("trainer", handle)], 1.0)
    assert said == []


def test_one_that_ended_while_it_waited_has_no_place_and_its_successor_waits_anew() -> None:
    said: list[str] = []
    waits = Waits(said.append)
    first, second = Waiting("a node with 1 GPU"), Waiting("a node with 1 GPU")
    waits.look([("trainer", first)], 0.0)
    waits.look([("trainer", first)], 10.0)
    waits.look([("trainer", second)], 11.0)
    waits.look([], 12.0)
    assert said == ["trainer waits for a node with 1 GPU, for 10 s so far"]


def test_what_else_it_waits_for_later_is_told_too() -> None:
    said: list[str] = []
    waits, handle = Waits(said.append), Waiting("a node with 1 GPU")
    waits.look([("replica:s0", handle)], 0.0)
    waits.look([("replica:s0", handle)], 11.0)
    handle.what = "a node with 2 GPU"
    waits.look([("replica:s0", handle)], 12.0)
    assert said[1:] == ["replica:s0 waits for a node with 2 GPU, for 12 s so far"]


def test_those_who_wait_for_the_same_are_told_in_one_line() -> None:
    said: list[str] = []
    waits = Waits(said.append)
    running = [("s0", Waiting("a node with 1 GPU")), ("s1", Waiting("a node with 1 GPU")), ("policy", Waiting("a node"))]
    for now in (0.0, TELL_AFTER_S):
        waits.look(running, now)
    assert said == ["s0, s1 wait for a node with 1 GPU, for 10 s so far", "policy waits for a node, for 10 s so far"]
    for _, handle in running:
        handle.what = ""
    waits.look(running, 20.0)
    assert said[2:] == ["s0, s1, policy have their places, after 20 s"]
