"""A candidate on a real server: it catches up, its trial fails, the run ends, and nothing is appended until it attaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bus.entry import Draft, Entry, Producer
from bus.events import PolicyAttached, RunEnded, RunPlanned
from bus.host import rebuild
from bus.redis_log import RedisLog
from bus.snapshot import freeze
from services.config_file import make_config
from services.context import ServiceContext, make_context
from services.launcher.protocol import RunPlace, ServiceSpec
from services.plan import plan_run
from services.policy.candidate import Candidate, Choice, Ended, WillNotDo
from services.policy.core import PolicyCore
from services.policy.making import make_policy
from services.policy.trial import Trial, read_trial
from services.snapshots import Snapshots
from tests.policies.logs import Story

REQUEST = 7
NAME = "fixed_ratio"
ATTACHED = PolicyAttached(name=NAME, params={}, mode="active", code="")
SETTINGS = {
    "model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "devices": "unpinned",
    "async_training": {"total_steps": 900, "ppo_mini_batch_size": 4, "trigger_parameter_sync_step": 2},
    "replicas": {"standalone": 1, "hybrid": 1}, "deadlines": {"verdict_s": 0.2},
}  # fmt: skip
IMPORTS = "from policies.base import PolicyBase\nfrom policies.protocol import Verdict\n\n\n"
HEAD = f"{IMPORTS}SEEN = []\n\n\nclass Own(PolicyBase):\n    def verdict(self, view):\n"


class Copied:
    """A story, and the same log on a server."""

    def __init__(self, url: str, planned: RunPlanned) -> None:
        self.story = Story(planned)
        self.story.attach(PolicyCore(make_policy(NAME, {})), ATTACHED)
        self.story.open_first_boundary()
        self.log = RedisLog.create(url, planned, 0)
        self._producer = Producer("policy", 0)
        self._copied = 1

    def cycles(self, count: int) -> None:
        for _ in range(count):
            self.story.grant()
            self.story.cycle(wait_s=1.0, lacking=1)
        self.copy()

    def copy(self) -> Sequence[Entry]:
        """What is new in the story goes to the server, each entry to the same position."""
        entries = self.story.entries[self._copied :]
        for entry in entries:
            draft = Draft(entry.event, entry.derived, entry.cause, entry.at)
            if isinstance(entry.event, PolicyAttached):
                self._producer = self.log.attach("policy", draft).producer
            else:
                self.log.append(self._producer if entry.source == "policy" else Producer(entry.source, 0), [draft])
        self._copied += len(entries)
        return entries


@pytest.fixture
def context(redis_url: str, run: str, tmp_path: Path) -> ServiceContext:
    (tmp_path / "run").mkdir()
    planned = plan_run(make_config(SETTINGS, "test"), run)
    return make_context(RunPlace(redis_url, run, tmp_path / "run"), ServiceSpec("policy", request=REQUEST, candidate=True), planned, "code")


@pytest.fixture
def copied(context: ServiceContext) -> Iterator[Copied]:
    made = Copied(context.url, context.plan)
    made.cycles(12)
    yield made
    made.log.close()


def candidate(context: ServiceContext, source: str = "") -> Candidate:
    name = "own.py:Own" if source else NAME

    def make() -> PolicyCore:
        return PolicyCore(make_policy(name, {}, source))

    return Candidate(context, Choice(make, name), make(), Trial(context.folder, REQUEST), Snapshots(context, "policy", "code"))


def test_it_appends_nothing_and_has_the_state_of_the_log_up_to_its_first_word(context: ServiceContext, copied: Copied) -> None:
    newcomer, before = candidate(context), copied.log.last_position()
    newcomer.catch_up()
    assert copied.log.last_position() == before
    copied.cycles(2)
    own_start = copied.log.attach("policy", Draft(ATTACHED, derived=False, cause=0, at=0)).position
    caught = newcomer.caught(own_start)
    again = PolicyCore(make_policy(NAME, {}))
    entries = copied.log.read(0, 10_000)
    rebuild(again, entries)
    assert freeze(caught.core) == freeze(again)
    newest = max(entry.position for entry in entries if entry.derived and entry.source == "policy")
    assert (caught.decided_at, caught.ended) == ({"SwitchRequested": newest}, False)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("        return Verdict('rollout', 5 + 1 // (view.boundary.version - 3), 'r')\n", "line 10, in verdict"),
        ("        return Verdict('sideways', 1, 'r')\n", "sideways"),
        ("        return sum(range(20_000_000)) and Verdict('train', 0, 'r')\n", "deadlines.verdict_s is 0.2"),
        ("        raise SystemExit(3)\n", "verdict called sys.exit(3)"),
        ("        pass\n", "verdict answered None, expected: a Verdict"),
        ("        self.params['n'] = view.generated = 1\n        return Verdict('train', 0, 'r')\n", "answering changes the policy: only"),
        ("        return Verdict('train', 0, str(SEEN.append(1) or len(SEEN)))\n", "answering changes the policy: asked twice"),
    ],
    ids=["raises", "is none", "is slow", "exits", "is nothing", "changes it", "changes something else"],
)
def test_one_whose_answer_will_not_do_says_why_where_its_keeper_reads_it(
    context: ServiceContext, copied: Copied, body: str, why: str
) -> None:
    with pytest.raises(WillNotDo):
        candidate(context, HEAD + body).catch_up()
    said = read_trial(context.folder, REQUEST)
    assert said.stage == "answer"
    assert why in said.detail
    assert copied.log.last_position() == len(copied.story.entries)


def test_before_the_first_boundary_it_is_asked_on_one_that_is_made_up(context: ServiceContext) -> None:
    with RedisLog.create(context.url, context.plan, 0) as log:
        candidate(context).catch_up()
        with pytest.raises(WillNotDo):
            candidate(context, HEAD + "        return 1 // view.boundary.version\n").catch_up()
        assert log.last_position() == 1
    said = read_trial(context.folder, REQUEST)
    assert said.stage == "answer"
    assert "ZeroDivisionError" in said.detail


def test_where_the_run_ends_first_it_attaches_no_more(context: ServiceContext, copied: Copied) -> None:
    copied.log.append(Producer("controller", 0), [Draft(RunEnded(reason="completed"), derived=False, cause=1, at=0)])
    with pytest.raises(Ended):
        candidate(context).catch_up()
