"""C-48 and beyond: over a minute of silence is no error, for redis-py's defaults turn it into time-outs, retries and a lost place.

The waiting began with the session (tests/conftest.py), and these tests come last in it.
"""

from __future__ import annotations

import pytest

from bus.entry import Producer
from tests.bus.factories import steps
from tests.bus.idle import IDLE_MS, IdleReads


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_block_of_over_a_minute_ends_when_the_server_ends_it(long_idle: dict[str, IdleReads], kind: str) -> None:
    reads = long_idle[kind]
    reads.join_bare()
    assert reads.silence is None
    assert reads.silence_s >= IDLE_MS / 1000


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_reader_gets_what_comes_after_over_a_minute_of_silence(long_idle: dict[str, IdleReads], kind: str) -> None:
    """The server closes connections of idle clients meanwhile, as many are set to do: the writer's, which opens another one."""
    reads = long_idle[kind]
    reads.join_bare()
    assert reads.writer.append(Producer("operator", 0), steps(1, 2)) == 2
    reads.join_reader()
    assert reads.nothing == []
    assert [entry.position for entry in reads.late] == [2, 3]
