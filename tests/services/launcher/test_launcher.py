"""The supervisor with real processes and a real server: exits, restarts, kills, the end, and that nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import Event, RunPlanned, ServiceLost, ServiceStarted, StopRequested
from bus.redis_log import RedisLog
from services.config import SupervisorConfig
from services.config_file import make_config
from services.launcher.folders import find_run, known_runs, make_run_folder, new_run_id, write_info
from services.launcher.interrupts import Interrupts, StopNow
from services.launcher.local import LocalLauncher, living_members
from services.launcher.prepare import WarmStartStep, with_model
from services.launcher.protocol import RunPlace, ServiceSpec
from services.launcher.restarts import Restarts
from services.launcher.supervisor import Outcome, Supervisor, services_of
from services.places import shm_folder

PLAN = RunPlanned(
    run="r", seed=0, total_steps=1, required_samples=1, trigger_parameter_sync_step=1, staleness_threshold=0, rollout_n=1,
    max_prompt_length=1, max_response_length=1, standalone=("s0",), hybrid=("h0",),
)  # fmt: skip
QUICK = SupervisorConfig(max_restarts=2, first_delay_s=0.01, grace_s=1)
Supervise = Callable[..., "Supervised"]


class Supervised:
    """A run with stand-ins for services, at its end."""

    def __init__(self, supervisor: Supervisor, outcome: Outcome, entries: list[Entry], pids: list[int]) -> None:
        self.supervisor = supervisor
        self.outcome = outcome
        self.entries = entries
        self.pids = pids

    def events(self, kind: type[Event]) -> list[Event]:
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]

    def lost(self) -> list[ServiceLost]:
        return [event for event in self.events(ServiceLost) if isinstance(event, ServiceLost)]


@pytest.fixture
def supervise(redis_url: str, run: str, tmp_path: Path) -> Iterator[Supervise]:
    """Runs stand-ins, source -> behaviour, under a supervisor. `stop_after_s`: when the run is asked to stop."""
    place = RunPlace(redis_url, run, tmp_path)
    log = RedisLog.create(redis_url, PLAN.model_copy(update={"run": run}), 0)

    def command(behaviours: Mapping[str, str], spec: ServiceSpec) -> list[str]:
        return [sys.executable, "-m", "tests.services.stand_in", run, spec.source, behaviours[spec.source], spec.token]

    def start(config: SupervisorConfig = QUICK, stop_after: type[Event] | None = None, **behaviours: str) -> Supervised:
        named = {name.replace("replica_", "replica:"): behaviour for name, behaviour in behaviours.items()}
        entries: list[Entry] = []
        pids: list[int] = []

        def watch(new: object) -> None:
            assert isinstance(new, list)
            entries.extend(new)
            pids.extend(entry.event.pid for entry in new if isinstance(entry.event, ServiceStarted))
            if stop_after is not None and any(isinstance(entry.event, stop_after) for entry in new):
                supervisor.stop_asked = "test"

        supervisor = Supervisor(place, log, LocalLauncher(place, lambda spec: command(named, spec)), config, watch)
        specs = [ServiceSpec(*name.split(":")) for name in named]
        with supervisor:
            outcome = supervisor.run(specs)
        return Supervised(supervisor, outcome, entries, pids)

    yield start
    log.close()


def is_alive(pid: int) -> bool:
    return bool(living_members(pid))


def test_a_run_ends_when_its_log_says_so_and_nobody_is_left(supervise: Supervise) -> None:
    run = supervise(controller="end_at_once", trainer="serve", replica_h0="serve")
    assert run.outcome == Outcome("completed")
    assert run.lost() == []
    assert run.pids
    assert not any(map(is_alive, run.pids))


def test_a_service_that_crashes_is_lost_with_its_epoch_and_its_last_words_and_comes_back(supervise: Supervise) -> None:
    run = supervise(controller="end_when_back", trainer="crash_first")
    (lost,) = run.lost()
    assert (lost.service, lost.epoch, lost.restarting) == ("trainer", 1, True)
    assert lost.detail == "exit code 1: something broke"
    assert run.outcome.reason == "completed"


def test_the_loss_of_a_service_names_its_first_word_as_cause(supervise: Supervise) -> None:
    run = supervise(controller="end_when_back", trainer="crash_first")
    (lost,) = (entry for entry in run.entries if isinstance(entry.event, ServiceLost))
    cause = run.entries[lost.cause - 1]
    assert (cause.source, cause.epoch, type(cause.event)) == ("trainer", 1, ServiceStarted)
    assert (lost.source, lost.epoch, lost.derived) == ("supervisor", 0, False)


def test_a_service_that_keeps_crashing_is_given_up(supervise: Supervise) -> None:
    run = supervise(controller="end_when_lost", trainer="crash")
    assert [(lost.epoch, lost.restarting) for lost in run.lost()] == [(1, True), (2, True), (3, False)]
    assert run.outcome == Outcome("service_lost", "trainer")
    assert not run.outcome.in_order


def test_a_service_that_ends_before_its_first_word_is_lost_without_an_epoch(supervise: Supervise) -> None:
    run = supervise(controller="end_when_lost", trainer="never_start")
    assert {lost.epoch for lost in run.lost()} == {0}


def test_a_service_whose_command_cannot_be_followed_is_not_tried_again(supervise: Supervise) -> None:
    run = supervise(controller="end_when_lost", trainer="be_mistaken")
    assert [(lost.restarting, lost.detail) for lost in run.lost()] == [(False, "exit code 2: no such thing")]


def test_a_service_that_was_replaced_is_neither_lost_nor_restarted(supervise: Supervise) -> None:
    run = supervise(controller="end_on_stop", trainer="be_fenced", stop_after=ServiceStarted)
    assert run.lost() == []
    assert run.outcome.reason == "stopped"


def test_a_controller_that_cannot_be_restarted_ends_the_run(supervise: Supervise) -> None:
    run = supervise(controller="crash", trainer="serve")
    assert run.outcome.reason == "controller_lost"
    assert "something broke" in run.outcome.detail
    assert not any(map(is_alive, run.pids))


def test_a_replica_that_must_be_killed_is_killed_and_its_exit_reported_before_it_comes_back(supervise: Supervise) -> None:
    run = supervise(controller="kill_replica", replica_h0="hang_first")
    (lost,) = run.lost()
    assert (lost.service, lost.epoch, lost.restarting) == ("replica:h0", 1, True)
    assert lost.detail.startswith("signal 9")
    order = [entry.event.kind for entry in run.entries if entry.source in ("supervisor", "replica:h0") or "Kill" in entry.event.kind]
    assert order == ["RunPlanned", "ServiceStarted", "KillRequested", "ServiceLost", "ServiceStarted"]
    assert run.outcome.reason == "completed"


def test_an_exit_counts_only_when_the_whole_group_is_gone(supervise: Supervise) -> None:
    run = supervise(controller="end_when_back", trainer="crash_with_child")
    assert run.lost()[0].detail.endswith("my child lives on")
    assert not any(map(is_alive, run.pids))


def test_a_service_that_does_not_end_by_itself_is_ended_and_named(supervise: Supervise) -> None:
    began = time.monotonic()
    run = supervise(controller="end_at_once", trainer="ignore_the_end", config=QUICK.model_copy(update={"grace_s": 0.3}))
    assert run.outcome == Outcome("completed", leftovers=("trainer",))
    assert not any(map(is_alive, run.pids))
    assert time.monotonic() - began < 30


def test_a_run_that_is_asked_to_stop_ends_in_order(supervise: Supervise) -> None:
    run = supervise(controller="end_on_stop", trainer="serve", stop_after=ServiceStarted)
    assert run.outcome == Outcome("stopped")
    assert run.outcome.in_order
    assert len(run.events(StopRequested)) == 1


def test_a_run_that_does_not_stop_in_time_is_ended(supervise: Supervise) -> None:
    run = supervise(controller="serve", stop_after=ServiceStarted, config=QUICK.model_copy(update={"stop_s": 0.5}))
    assert run.outcome.reason == "not_stopped"
    assert "0.5 s" in run.outcome.detail
    assert not any(map(is_alive, run.pids))


def test_the_pause_before_a_restart_doubles_up_to_its_limit_and_starts_anew_after_a_healthy_life() -> None:
    config = SupervisorConfig(max_restarts=4, first_delay_s=1, longest_delay_s=3, healthy_after_s=60)
    restarts = Restarts(config)
    assert [restarts.delay_s(1.0) for _ in range(5)] == [1, 2, 3, 3, None]
    assert [restarts.delay_s(60.0), restarts.delay_s(1.0)] == [1, 2]


def test_a_run_consists_of_its_deciders_the_recorder_and_its_replicas() -> None:
    sources = [spec.source for spec in services_of(PLAN)]
    assert sources == ["archiver", "trainer", "rollouter", "controller", "policy", "replica:s0", "replica:h0"]


def test_a_service_gets_the_servers_url_by_its_environment_only(tmp_path: Path) -> None:
    place = RunPlace("redis://:secret@host", "r1", tmp_path)
    seen = tmp_path / "seen"
    handle = LocalLauncher(place, lambda _: ["/bin/sh", "-c", f'echo "$REDIS_URL" > {seen}; cat /proc/$$/cmdline']).spawn(
        ServiceSpec("trainer")
    )
    while handle.poll() is None:
        time.sleep(0.01)
    assert seen.read_text().strip() == "redis://:secret@host"
    assert "secret" not in place.log_file("trainer").read_text()


def test_a_process_that_was_killed_has_ended_by_its_signal(tmp_path: Path) -> None:
    handle = LocalLauncher(RunPlace("", "r1", tmp_path), lambda _: ["/bin/sleep", "600"]).spawn(ServiceSpec("replica", "h0"))
    assert handle.poll() is None
    assert handle.kill()
    while handle.poll() is None:
        time.sleep(0.01)
    assert handle.poll() == -signal.SIGKILL
    assert handle.kill()


def test_services_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from services.launcher.local import LocalLauncher;"
        "from services.launcher.protocol import RunPlace, ServiceSpec;"
        "place = RunPlace('', 'r1', Path(sys.argv[1]));"
        "print(LocalLauncher(place, lambda _: ['/bin/sleep', '600']).spawn(ServiceSpec('trainer')).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        supervisor.kill()
    give_up = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_the_first_signal_asks_the_second_ends_at_once_further_ones_are_ignored() -> None:
    asked = []
    with Interrupts() as interrupts:
        interrupts.ask = lambda: asked.append(True)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked == [True]
        with pytest.raises(StopNow):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_terminal_that_is_gone_asks_for_an_end_in_order_unless_it_was_to_be_ignored() -> None:
    asked = []
    # Tests may themselves be run by something that ignores it (nohup).
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            interrupts.ask = lambda: asked.append(True)
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == [True]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interrupts() as interrupts:
            interrupts.ask = lambda: asked.append(True)
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == [True]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_before_a_run_has_begun_the_first_signal_ends_at_once() -> None:
    with Interrupts(), pytest.raises(StopNow):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    make_run_folder(tmp_path, "r1")
    with pytest.raises(ConfigError, match="there is a run 'r1'"):
        make_run_folder(tmp_path, "r1")


@pytest.mark.parametrize("run", ["", "a/b", "..", "x" * 65])
def test_an_id_that_cannot_be_a_folder_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(ConfigError, match="run id"):
        make_run_folder(tmp_path, run)


def test_new_ids_are_free(tmp_path: Path) -> None:
    assert new_run_id(tmp_path, "my demo", "1") == "my-demo-1"
    make_run_folder(tmp_path, "my-demo-1")
    assert new_run_id(tmp_path, "my demo", "1") == "my-demo-1-2"


def test_a_run_is_found_by_its_id_and_by_its_folder(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, "r1")
    write_info(folder, "r1", "redis://:secret@host:1", {})
    for named in ("r1", str(folder)):
        found = find_run(named, tmp_path, None, {})
        assert (found.run, found.url, found.folder) == ("r1", "redis://:***@host:1", folder)
    assert find_run("r1", tmp_path, None, {"REDIS_URL": "redis://other"}).url == "redis://other"
    assert [found.run for found in known_runs(tmp_path)] == ["r1"]


def test_a_run_that_is_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run 'r9'"):
        find_run("r9", tmp_path, None, {})


def test_the_built_in_model_is_made_once_and_its_folder_is_planned(tmp_path: Path) -> None:
    settings = {"model": {"warm_start": {"steps": 2, "batch": 4}}, "async_training": {"total_steps": 1}}
    config, steps = make_config(settings, "test"), list[WarmStartStep]()
    made = with_model(config, tmp_path, steps.append)
    assert [step.step for step in steps] == [0, 1, 2]
    assert (Path(made.model.path) / "model.safetensors").is_file()
    assert (made.actor.model, Path(made.model.path).parent) == (made.model.path, tmp_path)
    assert with_model(config, tmp_path, lambda _: None) == made


def test_a_built_in_model_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    config = make_config({"model": {"shape": {"num_heads": 3}}}, "test")
    with pytest.raises(ConfigError, match="the heads must divide the hidden size"):
        with_model(config, tmp_path, lambda _: None)


def test_a_model_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a Hugging Face model folder"):
        with_model(make_config({"model": {"path": str(tmp_path)}}, "test"), tmp_path, lambda _: None)


def test_weights_in_shared_memory_lie_where_they_are_removed() -> None:
    import torch

    from services.weights.store import WeightStore

    run = f"test-{os.getpid()}"
    store = WeightStore(run, "shm")
    notice = store.publish({"w": torch.zeros(1)}, 0, 0, 1)
    assert str(shm_folder(run)) in notice.uri
    store.purge()
