"""Runs on a server that is shared: passwords, users, TLS, services started one by one from anywhere, deleting a run, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bus.acl import ROLES, acl_file
from bus.connection import Connection
from bus.entry import Producer
from bus.errors import BlobMissing, ServerError
from bus.events import GenerationFinished, RolloutPaused, RolloutResumed, RunEnded
from bus.history import History
from bus.keys import RUNS, Keys
from bus.memory_use import MemoryUse
from bus.recall import Recalling
from bus.recorder import Recorder
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.runs import list_runs, run_keys
from bus.trimming import Progress, Trimming
from tests.bus.factories import fact, generation, plan, started, steps
from tests.bus.servers import CERTIFICATE, running, tls_options
from tests.conftest import debian_binary
from tests.serving import SERVICES, Served, swingshift, write_config

OPERATOR = Producer("operator", 0)


def serve_all(served: Served, run: str, folder: Path, order: list[tuple[str, str]], environments: dict[str, dict[str, str]]) -> None:
    """Starts the services, each in a working folder of its own, with the environment of its role."""
    for service, name in order:
        cwd = folder / f"{run}-{service}{name}"
        cwd.mkdir()
        naming = ["--name", name] if name else []
        served.start(f"{run}-{service}{name}", ["serve", service, "--run", run, *naming], environments[service], cwd)


def ended(folder: Path) -> RunEnded:
    with Recording.open(folder) as recording:
        return next(entry.event for entry in recording.entries() if isinstance(entry.event, RunEnded))


def test_several_runs_share_a_server_with_a_password_and_their_services_start_in_any_order_from_anywhere(tmp_path: Path) -> None:
    with running(debian_binary(), tmp_path, "--port", "PORT", "--requirepass", "good") as port, Served(tmp_path) as served:
        environment = {"REDIS_URL": f"redis://:good@127.0.0.1:{port}"}
        runs = {"one": list(reversed(SERVICES)), "two": sorted(SERVICES)}
        serve_all(served, "one", tmp_path, runs["one"][:3], {service: environment for service, _ in SERVICES})
        served.wait_until_said("one-replicah0", "waiting for run one, at most 300 s more: ")
        assert "has no run 'one'" in served.said("one-replicah0")
        for run in runs:
            shared = f"{{transport: file, folder: {tmp_path / 'weights' / run}}}"
            swingshift("plan", str(write_config(tmp_path, run, weights=shared)), "--run", run, environment=environment)
        serve_all(served, "one", tmp_path, runs["one"][3:], {service: environment for service, _ in SERVICES})
        serve_all(served, "two", tmp_path, runs["two"], {service: environment for service, _ in SERVICES})
        served.wait()
        for run in runs:
            assert ended(tmp_path / f"{run}-archiver" / "runs" / run).reason == "completed"
            verify_finished = swingshift("replay", "verify", str(tmp_path / f"{run}-archiver" / "runs" / run))
            assert "passed: the chain is whole" in verify_finished
        runs_there = str(tmp_path / "one-archiver" / "runs")
        assert "all of it" in swingshift("record", "one", "-o", str(tmp_path / "again"), "--runs", runs_there, environment=environment)
        assert "passed: the chain is whole" in swingshift("replay", "verify", str(tmp_path / "again"))
        listed = swingshift("runs", environment=environment)
        assert "one" in listed
        assert "two" in listed
        assert "good" not in listed


def test_a_wrong_password_is_said_at_once_and_not_waited_for(tmp_path: Path) -> None:
    with running(debian_binary(), tmp_path, "--port", "PORT", "--requirepass", "good") as port:
        text = swingshift("serve", "trainer", "--run", "r", "--redis", f"redis://:bad@127.0.0.1:{port}", status=2)
    assert f"redis://:***@127.0.0.1:{port} refuses the user or password" in text


def test_a_server_whose_certificate_nobody_known_has_signed_is_refused_at_once(tmp_path: Path) -> None:
    with running(debian_binary(), tmp_path, *tls_options()) as port:
        text = swingshift("serve", "trainer", "--run", "r", "--redis", f"rediss://localhost:{port}", status=2)
    assert f"rediss://localhost:{port} cannot prove who it is" in text
    assert "name the certificate of its CA with REDIS_CA_FILE" in text


def test_each_service_runs_over_tls_under_its_own_user_and_no_password_is_in_a_command(tmp_path: Path) -> None:
    swingshift("acl", str(tmp_path / "secrets"))
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    options = [*tls_options(), "--aclfile", str(tmp_path / "secrets" / "users.acl")]
    with running(debian_binary(), tmp_path, *options) as port, Served(tmp_path) as served:
        environments = {
            role: {
                "REDIS_URL": f"rediss://{role}@localhost:{port}", "REDIS_CA_FILE": str(CERTIFICATE),
                "REDIS_PASSWORD_FILE": str(tmp_path / "secrets" / role),
            }
            for role in ROLES
        }  # fmt: skip
        swingshift("plan", str(write_config(tmp_path)), "--run", "r", environment=environments["supervisor"])
        serve_all(served, "r", tmp_path, [("monitor", ""), *SERVICES], environments)
        served.wait()
        assert ended(tmp_path / "r-archiver" / "runs" / "r").reason == "completed"
        config = write_config(tmp_path, "second", redis=f"{{url: 'rediss://supervisor@localhost:{port}', ca_file: {CERTIFICATE}}}")
        secret = {"REDIS_PASSWORD_FILE": environments["supervisor"]["REDIS_PASSWORD_FILE"]}
        swingshift("plan", str(config), "--run", "r2", environment=secret)
        assert "r2 (running)" in swingshift("status", "r2", "--runs", str(tmp_path / "runs"), environment=secret)
        observer = environments["observer"]
        assert "has ended (completed)" in swingshift("status", "r", environment=observer)
        assert "Measured step=4" in swingshift("tail", "r", "-n", "200", "--kind", "Measured", environment=observer)
        text = swingshift("purge", "r", "--yes", status=2, environment=observer)
        assert "refuses a command" in text
        assert "run r is deleted" in swingshift("purge", "r", "--yes", environment=environments["operator"])
    text = swingshift("status", "r", status=2, environment={"REDIS_URL": "redis://localhost:1", "REDIS_PASSWORD_FILE": "none.txt"})
    assert "REDIS_PASSWORD_FILE is none.txt, which cannot be read" in text


@pytest.fixture(scope="module")
def passwords() -> dict[str, str]:
    return {role: f"word-of-{role}" for role in ROLES}


def test_users_have_the_rights_that_their_part_of_a_run_needs_and_no_more(tmp_path: Path, passwords: dict[str, str]) -> None:
    (tmp_path / "users.acl").write_text(acl_file(passwords))
    with running(debian_binary(), tmp_path, "--port", "PORT", "--aclfile", str(tmp_path / "users.acl")) as port:
        urls = {role: f"redis://{role}:{password}@127.0.0.1:{port}" for role, password in passwords.items()}
        RedisLog.create(urls["supervisor"], plan("r"), at=1).close()
        for role in ("trainer", "rollouter", "controller", "policy", "archiver", "monitor"):
            with RedisLog.open(urls[role], "r") as log:
                log.append(log.attach(role, fact(started())).producer, steps(1, 1))
        with RedisLog.open(urls["rollouter"], "r") as log:
            log.append(OPERATOR, [fact(generation("1.0", "s0"))])
        with RedisLog.open(urls["replica"], "r") as log:
            assert log.read_inbox("s0", 0, 10)
        refused: dict[str, Callable[[], None]] = {
            "observer": lambda: append(urls["observer"]),
            "monitor": lambda: put(urls["monitor"], "sample:1"),
            "trainer": lambda: put(urls["trainer"], "answer:1"),
            "replica": lambda: put(urls["replica"], "sample:1"),
            "policy": lambda: put(urls["policy"], "prompt:1"),
            "controller": lambda: put(urls["controller"], "prompt:1"),
            "replica, trimming": lambda: Trimming(urls["replica"], "r", "any").report("trainer", 3),
            "trainer, deleting": lambda: RedisBlobs(urls["trainer"], "r").delete(["sample:1"]),
        }
        for attempt in refused.values():
            with pytest.raises(ServerError, match=r"refuses a command: .*permission"):
                attempt()
        for role, url in urls.items():
            for command in (("FLUSHALL",), ("GET", "other"), ("SET", "swingshift", "1"), ("CONFIG", "GET", "*"), ("KEYS", "*")):
                assert is_refused(url, *command), f"{role} may {command}"
        assert is_refused(f"redis://127.0.0.1:{port}", "PING")


def test_every_user_who_reads_a_log_gets_what_was_trimmed_through_the_archivers(tmp_path: Path, passwords: dict[str, str]) -> None:
    (tmp_path / "users.acl").write_text(acl_file(passwords))
    with running(debian_binary(), tmp_path, "--port", "PORT", "--aclfile", str(tmp_path / "users.acl")) as port:
        urls = {role: f"redis://{role}:{password}@127.0.0.1:{port}" for role, password in passwords.items()}
        RedisLog.create(urls["supervisor"], plan("r"), at=1).close()
        with RedisLog.open(urls["archiver"], "r") as log, Recorder.open(tmp_path / "recorded", "r", log.log_id) as recorder:
            log.append(OPERATOR, steps(1, 9))
            recorder.append(log.read(0, 10))
            trimming = Trimming(urls["archiver"], "r", log.log_id)
            trimming.trim(8)
            for holder in ("trainer", "rollouter", "controller", "policy"):
                Progress(urls[holder], "r", holder).close(7)
            assert trimming.positions() == dict.fromkeys(("trainer", "rollouter", "controller", "policy"), 7)
            trimming.close()
        with Recalling(urls["archiver"], "r", tmp_path / "recorded"):
            for role in ("trainer", "rollouter", "controller", "policy", "monitor", "observer", "operator", "supervisor"):
                with History.open(urls[role], "r", None) as history:
                    assert [entry.position for entry in history.entries(0, 10)] == list(range(1, 11)), role
        blobs = RedisBlobs(urls["rollouter"], "r")
        blobs.put("sample:1", b"x")
        RedisBlobs(urls["archiver"], "r").delete(["sample:1"])
        with pytest.raises(BlobMissing):
            blobs.get("sample:1")


def append(url: str) -> None:
    with RedisLog.open(url, "r") as log:
        assert log.read(0, 100)
        log.append(OPERATOR, steps(1, 1))


def put(url: str, name: str) -> None:
    blobs = RedisBlobs(url, "r", patience_s=0.1)
    try:
        blobs.put(name, b"x")
    finally:
        blobs.close()


def is_refused(url: str, *command: str) -> bool:
    connection = Connection(url)
    try:
        connection.call(*command)
    except ServerError:
        return True
    finally:
        connection.close()
    return False


def test_users_of_one_run_see_no_other(tmp_path: Path, passwords: dict[str, str]) -> None:
    (tmp_path / "users.acl").write_text(acl_file(passwords, "mine"))
    with running(debian_binary(), tmp_path, "--port", "PORT", "--aclfile", str(tmp_path / "users.acl")) as port:
        url = f"redis://supervisor:{passwords['supervisor']}@127.0.0.1:{port}"
        RedisLog.create(url, plan("mine"), at=1).close()
        with pytest.raises(ServerError, match="permission"):
            RedisLog.create(url, plan("other"), at=1)


def test_an_acl_keeps_the_passwords_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "trainer").write_text("chosen\n")
    swingshift("acl", str(tmp_path), "--run", "r1")
    lines = (tmp_path / "users.acl").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["default", *ROLES]
    assert (tmp_path / "trainer").read_text() == "chosen\n"
    assert "is no run id" in swingshift("acl", str(tmp_path), "--run", "a:b", status=2)


def test_a_health_command_tells_by_its_exit_status_whether_a_service_is_alive(redis_url: str, run: str) -> None:
    connection = Connection(redis_url)
    connection.call("SET", Keys(run).alive("replica:s0"), 3)
    assert f"healthy: replica:s0 of run {run}, epoch 3" in swingshift(
        "healthy", "replica", "--name", "s0", "--run", run, environment={"REDIS_URL": redis_url}
    )
    assert "trainer of run" in swingshift("healthy", "trainer", "--run", run, "--redis", redis_url, status=1)
    assert "not healthy: no answer" in swingshift("healthy", "trainer", "--run", run, "--redis", "redis://127.0.0.1:1", status=1)
    assert "Name it with --redis" in swingshift("healthy", "trainer", "--run", run, status=2)
    connection.close()


def test_a_purged_run_is_gone_from_the_server_and_its_folder_and_other_runs_stay(redis_url: str, run: str, tmp_path: Path) -> None:
    other = f"{run}.1"
    for name in (run, other):
        with RedisLog.create(redis_url, plan(name), at=1) as log:
            log.append(OPERATOR, [*steps(1, 20), fact(generation("1.0", "s0"))])
        put_payloads(redis_url, name, 1200)
    connection = Connection(redis_url)
    before = len(run_keys(connection, other))
    folder = tmp_path / "runs" / run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(f'{{"run": "{run}", "redis": "{redis_url}"}}')
    text = swingshift("purge", str(folder), status=1, stdin="n\n")
    assert f"delete run {run} from {redis_url}: {before} keys? Its folder stays" in text
    assert "nothing was deleted" in text
    connection.call("SET", Keys(run).alive("trainer"), 2)
    text = swingshift("purge", str(folder), "--yes", status=2)
    assert f"run {run} is alive: trainer (epoch 2); end it with `swingshift stop {run}`" in text
    assert len(run_keys(connection, run)) == before + 1
    text = swingshift("purge", str(folder), "--yes", "--force")
    assert f"run {run} is deleted from {redis_url}: {before + 1} keys, " in text
    assert text.endswith(f"bytes; its folder {folder} is as it was")
    assert (folder / "run.json").is_file()
    assert run_keys(connection, run) == []
    assert len(run_keys(connection, other)) == before
    assert run.encode() not in names(connection)
    assert list_runs(connection).count(other) == 1
    assert f"has no run '{run}'" in swingshift("purge", str(folder), "--yes", status=2)
    connection.close()


def names(connection: Connection) -> list[object]:
    reply = connection.call("SMEMBERS", RUNS)
    assert isinstance(reply, list)
    return list(reply)


def put_payloads(url: str, run: str, count: int) -> None:
    blobs = RedisBlobs(url, run)
    for number in range(count):
        blobs.put(f"sample:{number}", b"x" * 500)
    blobs.close()


def test_what_a_run_takes_is_measured_without_looking_at_every_key(server_url: str, run: str) -> None:
    connection, memory = Connection(server_url), MemoryUse(server_url, run)
    with RedisLog.create(server_url, plan(run), at=1) as log:
        log.append(OPERATOR, [*steps(1, 3000), *(fact(generation(f"{number}.0", "s0")) for number in range(500))])
    put_payloads(server_url, run, 300)
    put_payloads(server_url, run, 200)  # again: a replaced payload counts once
    counted = sum(usage(connection, key) for key in run_keys(connection, run))
    assert memory.measure().run == pytest.approx(counted, rel=0.2)
    assert memory.measure().room is None
    blobs = RedisBlobs(server_url, run)
    blobs.delete([f"sample:{number}" for number in range(300)])
    blobs.delete(["sample:1"])
    assert connection.call("HGET", Keys(run).size, "bytes") == b"0"
    assert connection.call("HGET", Keys(run).size, "payloads") == b"0"
    blobs.close()
    memory.close()
    connection.close()


def usage(connection: Connection, key: str) -> int:
    used = connection.call("MEMORY", "USAGE", key, "SAMPLES", 0)
    assert isinstance(used, int)
    return used


LARGE = {
    "rollout": "{engine: scripted, n: 2, max_running_requests: 8, max_response_length: 30000}",
    "scripted": "{tokens_per_second: 60000, shortest_answer: 20000, longest_answer: 30000, seconds_per_step: 1.2}",
    "async_training": "{total_steps: 8, ppo_mini_batch_size: 4, trigger_parameter_sync_step: 1, staleness_threshold: 3}",
}
"""Payloads of some megabytes in all, most of them gone two checkpoints later."""


def run_with_budget(folder: Path, settings: str, status: int) -> str:
    path = folder / "large.yaml"
    sections = "".join(f"{name}: {section}\n" for name, section in LARGE.items())
    path.write_text(f"model: {{path: scripted}}\ndevices: unpinned\nfolder: {folder / 'runs'}\nredis: {settings}\n{sections}")
    return swingshift("run", str(path), "--run", "r", "--in-process", status=status)


def test_a_run_over_the_first_mark_is_paused_goes_on_when_there_is_room_and_completes(tmp_path: Path) -> None:
    assert "run r ended: completed" in run_with_budget(
        tmp_path, "{memory_budget: 60MB, memory_pause_at: 0.1, memory_resume_at: 0.098}", status=0
    )
    with Recording.open(tmp_path / "runs" / "r") as recording:
        entries = list(recording.entries())
    said = [entry for entry in entries if entry.source == "janitor"]
    assert [type(entry.event) for entry in said[:2]] == [RolloutPaused, RolloutResumed]
    assert all(entry.cause for entry in said)
    assert [entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)] == ["completed"]
    assert any(isinstance(entry.event, GenerationFinished) for entry in entries[said[1].position :]), "nothing was generated afterwards"


def test_a_run_over_its_budget_is_ended_with_both_numbers_and_nothing_is_evicted(tmp_path: Path) -> None:
    text = run_with_budget(tmp_path, "{memory_budget: 1MB}", status=1)
    assert "of 1000000 bytes on the server are used (redis.memory_budget)" in text
    assert "passed: the chain is whole" in text
    end = ended(tmp_path / "runs" / "r")
    assert end.reason == "memory"
    assert int(end.detail.split()[0]) >= 1_000_000


def test_a_run_that_fills_a_servers_memory_is_ended_with_the_numbers_before_nothing_can_be_said_any_more(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    settings = [word for section, value in LARGE.items() for word in ("--set", f"{section}={value}")]
    with running(debian_binary(), tmp_path, "--port", "PORT", "--maxmemory", "4mb") as port:
        settings += ["--set", "redis.memory_pause_at=1", "--redis", f"redis://127.0.0.1:{port}"]
        text = swingshift("run", str(config), "--run", "r", "--in-process", *settings, status=1)
    assert "run r ended: memory: " in text
    assert "bytes on the server are used" in text
    assert "passed: the chain is whole" in text


def test_a_run_whose_log_is_larger_than_its_budget_completes_for_what_is_recorded_is_forgotten(tmp_path: Path) -> None:
    config = write_config(tmp_path, redis="{memory_budget: 1500KB}")
    text = swingshift("run", str(config), "--run", "r", "--in-process", "--set", "async_training.total_steps=300", "--no-verify")
    assert "run r ended: completed" in text
    with Recording.open(tmp_path / "runs" / "r") as recording:
        assert sum(len(row.body) + len(row.chain) for row in recording.rows()) > 1_500_000
