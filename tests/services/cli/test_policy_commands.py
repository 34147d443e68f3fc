"""`swingshift policy …` on runs whose log is written by a test: what is asked for, what came of it, and what is refused before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bus.entry import Draft, Entry, Producer
from bus.events import (
    BoundaryOpened,
    Event,
    PolicyAttached,
    PolicyDetached,
    PolicyRefused,
    PolicyRequested,
    RunEnded,
    ServiceStarted,
    ShadowVerdict,
    SwitchRequested,
    WeightsPublished,
)
from bus.log import Log
from bus.redis_log import RedisLog
from services.cli.app import build_app
from services.launcher.folders import write_info
from services.policy.asking import ask
from tests.policies.logs import Story, plan
from tests.replay.recordings import save

OWN = '''"""Never lends."""
from policies.base import PolicyBase, keep


class Calm(PolicyBase):
    def __init__(self, cycles: int = 2) -> None:
        self.cycles = cycles

    def verdict(self, view):
        return keep("calm")
'''


class Kept:
    """A run on a server; `answer` stands for whoever keeps its policies."""

    def __init__(self, url: str, run: str, folder: Path, **changes: object) -> None:
        self.url, self.run, self.folder = url, run, folder
        self.log = RedisLog.create(url, plan(run=run, **changes), 0)
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def attach(self, name: str = "default", request: int = 0, label: str = "", source: str = "", **params: float) -> int:
        """A policy attaches: the active one, or with a label a shadow."""
        mode = "shadow" if label else "active"
        fields = {"name": name, "params": params, "mode": mode, "code": "", "request": request, "label": label, "source": source}
        started = self.log.attach(f"policy:{label}" if label else "policy", _fact(PolicyAttached.model_validate(fields)))
        self.producer = started.producer
        return started.position

    def say(self, source: str, *events: Event) -> int:
        return self.log.append(Producer(source, 0), [_fact(event) for event in events])

    def open(self) -> None:
        """Boundary 0 opens."""
        trainer = self.log.attach("trainer", _fact(ServiceStarted(code=""))).producer
        controller = self.log.attach("controller", _fact(ServiceStarted(code=""))).producer
        published = WeightsPublished(version=0, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.0)
        self.log.append(trainer, [_fact(published)])
        self.log.append(controller, [_fact(BoundaryOpened(version=0))])

    def keep(self, answer: Callable[[Kept, Entry, PolicyRequested], None]) -> None:
        """From now on every request is answered so, by a thread with a connection of its own."""
        self._keeper = threading.Thread(target=self._follow, args=(answer, self.log.last_position()))
        self._keeper.start()

    def _follow(self, answer: Callable[[Kept, Entry, PolicyRequested], None], after: int) -> None:
        with RedisLog.open(self.url, self.run) as log:
            while not self._stop.is_set():
                for entry in log.read(after, 100, 50):
                    after = entry.position
                    if isinstance(entry.event, PolicyRequested):
                        answer(self, entry, entry.event)

    def command(self, name: str, *arguments: str, status: int = 0) -> str:
        """Runs `swingshift policy NAME RUN …` in this process; returns what it printed, on one line."""
        return " ".join(self.invoke(name, *arguments, status=status).output.split())

    def invoke(self, name: str, *arguments: str, status: int = 0) -> Result:
        options = ["--redis", self.url, "--runs", str(self.folder)]
        done = CliRunner().invoke(build_app(lambda _: 0), ["policy", name, self.run, *arguments, *options], env={"COLUMNS": "160"})
        assert done.exit_code == status, done.output
        return done

    def entries(self) -> list[Entry]:
        return list(self.log.read(0, 1000))

    def requests(self) -> list[PolicyRequested]:
        return [entry.event for entry in self.entries() if isinstance(entry.event, PolicyRequested)]

    def close(self) -> None:
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        self.log.close()


def _fact(event: Event) -> Draft:
    return Draft(event, derived=False, cause=0, at=1)


def attaches(kept: Kept, entry: Entry, asked: PolicyRequested) -> None:
    label = asked.label if asked.action == "shadow" else ""
    kept.attach(asked.name, entry.position, label, asked.source, **asked.params)  # type: ignore[arg-type]


def refuses(kept: Kept, entry: Entry, asked: PolicyRequested) -> None:
    detail = 'Traceback (most recent call last):\n  File "own.py", line 7, in verdict\n    1 / 0\nZeroDivisionError: division by zero'
    kept.say("supervisor", PolicyRefused(request=entry.position, name=asked.name, label=asked.label, stage="answer", detail=detail))


@pytest.fixture
def kept(redis_url: str, run: str, tmp_path: Path) -> Iterator[Kept]:
    with closing(Kept(redis_url, run, tmp_path)) as made:
        made.attach("default", deactivate_ratio=0.3)
        yield made


# --- asking ----------------------------------------------------------------------------------------------------------------------


def test_a_swap_says_from_where_on_it_counts_and_what_was_before(kept: Kept) -> None:
    kept.open()
    kept.keep(attaches)
    text = kept.command("swap", "fixed_ratio", "--set", "deactivate_ratio=0.6")
    assert f"run {kept.run}: policy fixed_ratio (deactivate_ratio 0.6) decides from entry 8 on; boundary 0 is its first" in text
    assert "before it: policy default (deactivate_ratio 0.3), since entry 2" in text
    assert f"`swingshift policy rollback {kept.run}` goes back" in text
    assert kept.requests() == [PolicyRequested(action="swap", name="fixed_ratio", params={"deactivate_ratio": 0.6})]


def test_a_policy_in_a_file_travels_with_its_text(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    kept.keep(attaches)
    text = kept.command("shadow", f"{file}:Calm", "--set", "cycles=3")
    assert "policy Calm (cycles 3) watches as Calm from entry 4 on; boundary 0 is its first" in text
    assert f"`swingshift policy promote {kept.run} Calm` lets it decide" in text
    (request,) = kept.requests()
    assert (request.name, request.params, request.source, request.label) == (f"{file}:Calm", {"cycles": 3}, OWN, "Calm")


def test_promote_and_rollback_carry_all_that_is_needed_also_when_the_file_is_gone(kept: Kept) -> None:
    kept.attach("gone.py:Calm", label="calm", source=OWN, cycles=5)
    kept.keep(attaches)
    kept.command("promote", "calm")
    kept.command("rollback")
    promoted, back = kept.requests()
    assert (promoted.action, promoted.label) == ("promote", "calm")
    assert (promoted.name, promoted.params, promoted.source) == ("gone.py:Calm", {"cycles": 5}, OWN)
    assert (back.action, back.name, back.params, back.source) == ("rollback", "default", {"deactivate_ratio": 0.3}, "")


def test_a_shadow_gets_the_first_label_that_none_had(kept: Kept) -> None:
    kept.keep(attaches)
    kept.command("shadow", "fixed_ratio")
    kept.command("shadow", "fixed_ratio")
    kept.command("shadow", "fixed_ratio", "--label", "other")
    assert [request.label for request in kept.requests()] == ["fixed_ratio", "fixed_ratio-2", "other"]


def test_a_shadow_that_is_to_end_is_waited_for(kept: Kept) -> None:
    kept.attach("fixed_ratio", label="deep")
    watching = kept.producer

    def detaches(kept: Kept, entry: Entry, asked: PolicyRequested) -> None:
        kept.log.append(watching, [_fact(PolicyDetached(name="fixed_ratio", reason="asked to"))])

    kept.keep(detaches)
    assert "shadow deep watches no more (entry 5)" in kept.command("detach", "deep")


def test_a_refusal_ends_with_status_1_and_the_last_lines_of_the_traceback(kept: Kept) -> None:
    kept.keep(refuses)
    text = kept.command("swap", "fixed_ratio", status=1)
    assert "refused when it was asked in trial (entry 4), nothing was changed:" in text
    assert 'File "own.py", line 7, in verdict 1 / 0 ZeroDivisionError: division by zero' in text
    assert "entry 3: swap of fixed_ratio was refused at answer: ZeroDivisionError" in kept.command("status")


def test_when_nobody_keeps_policies_the_command_gives_up_and_the_request_stays(kept: Kept) -> None:
    text = kept.command("swap", "fixed_ratio", "--wait-s", "0.2", status=1)
    assert "nothing came of entry 3 within 0.2 s" in text
    assert "pending entry 3: asked to let policy fixed_ratio decide" in kept.command("status")


def test_without_waiting_it_only_asks(kept: Kept) -> None:
    assert "asked (entry 3)" in kept.command("swap", "fixed_ratio", "--wait-s", "0")


def test_a_run_that_ends_meanwhile_ends_the_wait(kept: Kept) -> None:
    controller = kept.log.attach("controller", _fact(ServiceStarted(code=""))).producer

    def ends(kept: Kept, entry: Entry, asked: PolicyRequested) -> None:
        kept.log.append(controller, [_fact(RunEnded(reason="completed"))])

    kept.keep(ends)
    assert "has ended (completed) before anything came of entry 4" in kept.command("swap", "fixed_ratio", status=1)
    assert f"run {kept.run} has ended (completed)" in kept.command("rollback", status=2)


def test_a_run_that_ended_while_the_command_read_its_log_is_not_waited_for(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = kept.log.attach("controller", _fact(ServiceStarted(code=""))).producer

    def late(log: Log, request: PolicyRequested) -> int:
        kept.log.append(controller, [_fact(RunEnded(reason="completed"))])
        return ask(log, request)

    monkeypatch.setattr("services.cli.policy_change.ask", late)
    assert "has ended (completed) before anything came of entry 5" in kept.command("swap", "fixed_ratio", status=1)


def test_two_swaps_at_once_each_name_the_one_before_them(kept: Kept) -> None:
    kept.open()

    def swaps_twice(kept: Kept, entry: Entry, asked: PolicyRequested) -> None:
        other = kept.say("operator", PolicyRequested(action="swap", name="static")) if asked.name != "static" else 0
        if other:
            kept.attach("static", other)
            attaches(kept, entry, asked)

    kept.keep(swaps_twice)
    assert "before it: policy static, since entry 9" in kept.command("swap", "fixed_ratio")


def test_a_label_that_cannot_be_one_is_refused_before_anything_is_asked(kept: Kept) -> None:
    for label in ("x" * 41, "_x", "-x", "é", "a/b", ""):
        done = kept.command("shadow", "default", f"--label={label}", status=2)
        assert "cannot be a label: it must be 1 to 40 letters" in done
    assert kept.requests() == []


# --- mistakes: told before anything is appended -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swap", "fixd_ratio"], "there is no policy 'fixd_ratio': did you mean 'fixed_ratio'?"),
        (["swap", "fixed_ratio", "--set", "ratio=0.5"], "has no setting 'ratio': did you mean 'deactivate_ratio'?"),
        (["swap", "fixed_ratio", "--set", "deactivate_ratio=1.5"], "deactivate_ratio is 1.5"),
        (["swap", "fixed_ratio", "--set", "deactivate_ratio"], "it must be of the form name=value"),
        (
            ["swap", "fixed_ratio", "--set", "deactivate_ratio=[1]"],
            "is a number, a text, true, false or null, not a list",
        ),
        (["swap", "none.py:Mine"], "none.py cannot be read: No such file or directory"),
        (["swap", "OWN:Mine"], "Mine"),
        (["swap", "OWN"], "say which class of the file it is"),
        (
            ["shadow", "default", "--label", "deep"],
            "deep is that of policy fixed_ratio, which watches: choose another one, deep-2 is free",
        ),
        (["shadow", "default", "--label", "a b"], "cannot be a label: it must be 1 to 40 letters"),
        (["promote", "deeep"], "there is no shadow 'deeep': did you mean 'deep'? There are deep"),
        (["promote", "default"], "policy default (deactivate_ratio 0.3) decides already, since entry 2"),
        (["promote", "policy"], "policy default (deactivate_ratio 0.3) decides already, since entry 2"),
        (["detach", "default"], "there is no shadow 'default'"),
        (
            ["rollback"],
            "nothing to go back to: policy default (deactivate_ratio 0.3) decides since entry 2, and none did before it",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_and_nothing_is_appended(kept: Kept, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    kept.attach("fixed_ratio", label="deep")
    before = kept.log.last_position()
    text = kept.command(*(argument.replace("OWN", str(tmp_path / "own.py")) for argument in arguments), status=2)
    assert words in text
    assert kept.log.last_position() == before


def test_a_run_that_is_not_there_is_a_mistake(kept: Kept) -> None:
    kept.run = "another-run"
    kept.command("rollback", status=2)


def test_a_run_that_asks_no_policy_is_warned_of(redis_url: str, run: str, tmp_path: Path) -> None:
    with closing(Kept(redis_url, run, tmp_path, hybrid=())) as static:
        static.attach()
        static.keep(attaches)
        assert "asks no policy, for it has no hybrid replica" in static.command("swap", "fixed_ratio")


# --- status ------------------------------------------------------------------------------------------------------------------------


def answer(kind: type[SwitchRequested] | type[ShadowVerdict], lends: bool) -> Event:
    fields = {"target": "rollout" if lends else "train", "answers": 0, "amends": None, "give_back_at": 4, "max_lent_s": 0.0, "reason": "r"}
    return kind.model_validate({**fields, "evidence": {}})


def test_status_says_who_decides_who_watches_and_where_they_differ(kept: Kept) -> None:
    active = kept.producer
    kept.attach("fixed_ratio", label="deep", deactivate_ratio=0.9)
    shadow = kept.producer
    kept.open()
    kept.log.append(active, [_fact(answer(SwitchRequested, lends=False))])
    kept.log.append(shadow, [_fact(answer(ShadowVerdict, lends=True))])
    text = kept.command("status")
    assert "decides default (deactivate_ratio 0.3), since entry 2, boundary 0, shows no sign of life" in text
    assert "watches deep: fixed_ratio (deactivate_ratio 0.9), since entry 3, boundary 0, shows no sign of life" in text
    assert "deep 0 keep lend, back at 4 unknown: the cycle has not ended" in text
    numbers = json.loads(kept.invoke("status", "--json").output)
    (comparison,) = numbers["shadow_comparisons"]
    assert (comparison["boundaries"], comparison["differ"], comparison["would_lend_instead"], comparison["saved_seconds"]) == (
        1,
        1,
        1,
        None,
    )
    assert numbers["policies"][0]["params"] == {"deactivate_ratio": 0.3}
    assert numbers["alive"] == {"policy": None, "policy:deep": None}


def test_status_of_a_run_that_has_not_begun_says_so(redis_url: str, run: str, tmp_path: Path) -> None:
    with closing(Kept(redis_url, run, tmp_path)) as fresh:
        assert "decides nobody yet" in fresh.command("status")
        assert "no policy has attached yet" in fresh.command("rollback", status=2)


def test_status_of_a_run_of_which_only_the_folder_is_left_is_read_from_its_recording(tmp_path: Path) -> None:
    story = Story(plan(run="gone"))
    story.write(PolicyAttached(name="default", params={}, mode="active", code=""), "policy")
    story.open_first_boundary()
    story.write(RunEnded(reason="completed"))
    write_info(save(tmp_path, story.store), "gone", None, {})
    done = CliRunner().invoke(build_app(lambda _: 0), ["policy", "status", str(tmp_path)], env={"COLUMNS": "120", "REDIS_URL": ""})
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "gone has ended (completed), 5 entries" in text
    assert "decides default, since entry 2, boundary 0 policies" in text, "nobody needs to be alive any more"
    asked = CliRunner().invoke(build_app(lambda _: 0), ["policy", "rollback", str(tmp_path)], env={"REDIS_URL": ""})
    assert asked.exit_code == 2
    assert "run gone has ended (completed): there is nothing left to decide" in " ".join(asked.output.split())


@pytest.mark.parametrize("is_known", [False, True])
def test_of_a_run_that_was_cut_off_every_command_says_so_and_how_to_go_on(tmp_path: Path, is_known: bool) -> None:
    """Killed, it leaves the file that names its embedded server, and nobody answers there."""
    story = Story(plan(run="gone"))
    story.write(PolicyAttached(name="default", params={}, mode="active", code=""), "policy")
    write_info(save(tmp_path, story.store), "gone", None, {})
    if is_known:
        (tmp_path / "server").mkdir()
        (tmp_path / "server" / "redis.url").write_text(f"unix://{tmp_path}/nobody.sock")
    folder = str(tmp_path)
    for command in (["policy", "swap", folder, "default"], ["policy", "status", folder], ["status", folder], ["stop", folder],
                    ["doctor", folder]):  # fmt: skip
        done = CliRunner().invoke(build_app(lambda _: 0), command, env={"COLUMNS": "160", "REDIS_URL": ""})
        words = " ".join(done.output.split())
        assert "was cut off: its embedded server is gone" in words, (command, words)
        assert "`swingshift run --resume gone`" in words
        assert "start a Redis" not in words
        assert "(running)" not in words
