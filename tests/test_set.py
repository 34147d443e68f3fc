"""`swingshift set` on a log of a real server: what is appended, what is printed, what is refused, and what is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus.entry import Draft, Producer
from bus.errors import ServerAbsent
from bus.events import RunEnded, SettingChanged
from bus.redis_log import RedisLog
from services.cli.app import build_app
from services.cli.set import change_live
from services.cli.source import find
from services.launcher.folders import FoundRun
from services.setting_changes import Change, SettingsNow
from tests.services.test_live_settings import planned


class Operator:
    """Calls the command line on one run."""

    def __init__(self, url: str, run: str, runs: Path) -> None:
        self.url, self.run, self.runs = url, run, runs
        self.log = RedisLog.create(url, planned().model_copy(update={"run": run}), at=1)

    def set(self, *assignments: str, status: int = 0) -> str:
        """What is printed."""
        done = CliRunner().invoke(build_app(lambda _: 0), ["set", self.run, *assignments, "--redis", self.url, "--runs", str(self.runs)])
        assert done.exit_code == status, done.output
        return done.output

    def said(self) -> list[tuple[int, str, object]]:
        """Position, name and value of what the log was told."""
        entries = self.log.read(0, 100)
        return [(entry.position, entry.event.name, entry.event.value) for entry in entries if isinstance(entry.event, SettingChanged)]


@pytest.fixture
def operator(redis_url: str, run: str, tmp_path: Path) -> Operator:
    return Operator(redis_url, run, tmp_path)


def test_settings_of_one_command_are_appended_together_and_each_says_from_where_on_it_counts(operator: Operator) -> None:
    said = operator.set("staleness_threshold=1", "enable_rebalance=false", "deadlines.wake_s=30", "max_attempts=3").splitlines()
    assert operator.said() == [(2, "staleness_threshold", 1.0), (3, "enable_rebalance", False), (4, "deadlines.wake_s", 30.0)]
    assert said[0].startswith("async_training.staleness_threshold: 0.5 -> 1.0 from entry 2 on (rollouter, controller, policy: at once")
    assert [line.partition(":")[0] for line in said] == [
        "async_training.staleness_threshold",
        "async_training.enable_rebalance",
        "deadlines.wake_s",
    ]
    assert [entry.source for entry in operator.log.read(1, 10)] == ["operator"] * 3


def test_what_is_refused_appends_nothing_and_says_why(operator: Operator) -> None:
    told = operator.set("staleness_threshold=1", "rollout.n=4", status=2)
    assert "swingshift: rollout.n cannot change on a live run: token budgets" in told
    assert f"run {operator.run}: async_training.staleness_threshold is -1, it must be at least 0" in operator.set(
        "staleness_threshold=-1", status=2
    )
    assert "did you mean async_training.staleness_threshold?" in operator.set("staleness=1", status=2)
    assert operator.said() == []


def test_a_second_command_begins_with_what_the_first_one_left(operator: Operator) -> None:
    operator.set("staleness_threshold=1")
    assert "1.0 -> 0.25 from entry 3 on" in operator.set("staleness_threshold=0.25")
    assert operator.set("staleness_threshold=0.25") == "nothing changes: all of it is so already\n"
    assert [position for position, _, _ in operator.said()] == [2, 3]


def test_without_assignments_all_that_can_change_is_listed_with_its_value_and_where_it_is_from(operator: Operator) -> None:
    operator.set("max_lent_s=12.5", "memory_budget=1GiB")
    rows = {words[0]: words[1:] for line in operator.set().splitlines() if (words := line.split())}
    assert rows["async_training.max_lent_s"][:3] == ["12.5", "entry", "2"]
    assert rows["redis.memory_budget"][:3] == ["1073741824", "entry", "3"]
    assert rows["async_training.staleness_threshold"][:2] == ["0.5", "plan"]
    assert rows["async_training.max_version_lag"][:2] == ["null", "plan"]


def test_a_change_that_somebody_elses_has_made_impossible_meanwhile_is_reported(operator: Operator) -> None:
    found = find(operator.run, operator.runs, operator.url)
    now = SettingsNow()
    for entry in operator.log.read(0, 10):
        now.apply(entry)
    operator.set("max_version_lag=1", "on_version_lag=wait")
    with pytest.raises(Exception, match=r"entry 4 .* changed nothing: somebody else changed a setting that it does not fit with any more"):
        change_live(found, now, [Change("async_training.staleness_threshold", 0.5, 2.0)])


def test_of_a_run_whose_server_is_gone_it_says_how_to_go_on(operator: Operator) -> None:
    gone = FoundRun(operator.run, f"unix://{operator.runs}/redis.sock", operator.runs)
    with pytest.raises(ServerAbsent, match=f"`swingshift run --resume {operator.run}` goes on with it"):
        change_live(gone, SettingsNow(), [Change("async_training.max_lent_s", 600.0, 2.0)])


def test_a_run_that_has_ended_takes_no_change(operator: Operator) -> None:
    operator.log.append(Producer("controller", 0), [Draft(RunEnded(reason="completed"), derived=False, cause=1, at=1)])
    assert "has ended (completed): nobody would honour a change" in operator.set("staleness_threshold=1", status=2)
    assert "async_training.max_lent_s" in operator.set()
