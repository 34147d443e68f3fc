"""What a disk does not take is tried again until it does: how often, what is said, and who has a turn meanwhile."""

from __future__ import annotations

import pytest

from bus.errors import DiskError, LogError
from services.archiver.disk_patience import IDLE_S, LONGEST_PAUSE_S, DiskPatience


class Story:
    """A disk that is full until `room_at`, on a clock that passes when somebody sleeps."""

    def __init__(self, room_at: float) -> None:
        self.room_at = room_at
        self.now = 100.0
        self.tries: list[float] = []
        self.turns = 0

    def write(self) -> str:
        self.tries.append(self.now - 100.0)
        if self.now - 100.0 < self.room_at:
            raise DiskError("the disk is full")
        return "written"

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= IDLE_S
        self.now += seconds

    def meanwhile(self, error: DiskError) -> None:
        assert str(error) == "the disk is full"
        self.turns += 1

    def wait(self) -> str:
        return DiskPatience(self.meanwhile, lambda: self.now, self.sleep).until_taken(self.write)


def test_a_disk_with_room_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(0.0)
    assert story.wait() == "written"
    assert (story.tries, story.turns, caplog.text) == ([0.0], 0, "")


def test_a_full_disk_is_tried_with_growing_pauses_and_the_janitor_has_its_turn_meanwhile() -> None:
    story = Story(20.0)
    assert story.wait() == "written"
    assert story.tries == [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 11.75, 15.75, 19.75, 23.75]
    assert max(later - earlier for earlier, later in zip(story.tries, story.tries[1:], strict=False)) == LONGEST_PAUSE_S
    assert story.turns == 23.75 / IDLE_S


def test_it_is_said_at_once_then_once_in_a_while_and_when_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    Story(70.0).wait()
    said = [record.getMessage().split(" error=")[0] for record in caplog.records]
    assert said[0] == "the disk takes nothing, trying on: waited_s=0"
    assert len(said) == 4
    assert said[-1] == "the disk takes entries again: waited_s=72"


def test_what_no_room_can_mend_is_not_tried_again() -> None:
    def fail() -> None:
        raise LogError("the file is damaged")

    with pytest.raises(LogError, match="damaged"):
        DiskPatience(lambda error: None).until_taken(fail)
