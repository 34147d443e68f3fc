"""compose.yaml: valid, safe, and what it says, started as plain processes, is a run from its plan to its end."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from compose_spec import PyCompose, PyOptions

from bus.acl import ROLES
from bus.events import RunEnded
from bus.recording import Recording
from tests.bus.servers import free_port, running
from tests.conftest import debian_binary
from tests.serving import COMMAND, PATIENCE_S, QUIET, SCRIPTED, Served, swingshift

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "compose.yaml").read_text()
SERVED = ("trainer", "rollouter", "s0", "h0", "controller", "policy", "archiver")
Service = Mapping[str, object]


def parsed(text: str) -> PyCompose:
    options = PyOptions()
    options.apply_merge = True
    return options.from_yaml(text)


def services() -> dict[str, Service]:
    found = parsed(TEXT).to_dict()["services"]
    assert isinstance(found, dict)
    return {str(name): service for name, service in found.items()}


def section(service: Service, name: str) -> dict[str, object]:
    found = service.get(name) or {}
    assert isinstance(found, dict), f"{name} is {found!r}"
    return found


def words(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(word) for word in value]


def test_the_file_is_what_the_compose_specification_allows() -> None:
    compose = parsed(TEXT)
    compose.validate()
    assert set(compose.service_names()) == {"redis", "plan", "cli", *SERVED}


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("init: true", "inti: true", "inti"),
        ("condition: service_healthy", "condition: healthy", "healthy"),
        ("secrets: [trainer]", "secrets: [trainr]", "trainr"),
        ('volumes: ["runs:/runs"]', 'volumes: ["rums:/runs"]', "rums"),
    ],
)
def test_the_check_finds_mistakes(right: str, wrong: str, complaint: str) -> None:
    assert right in TEXT
    with pytest.raises(ValueError, match=complaint):
        parsed(TEXT.replace(right, wrong)).validate()


def test_nothing_is_published_and_every_service_has_its_own_password_a_check_and_a_bound_on_restarts() -> None:
    found = services()
    assert [name for name, service in found.items() if service.get("ports")] == []
    assert "PASSWORD=" not in TEXT
    for name in SERVED:
        service, role = found[name], "replica" if name in ("s0", "h0") else name
        assert service["secrets"] == [role]
        assert section(service, "environment")["REDIS_URL"] == f"redis://{role}@redis:6379"
        assert section(service, "depends_on")["plan"] == {"condition": "service_completed_successfully"}
        assert "max_attempts" in str(service["deploy"])
        assert words(section(service, "healthcheck")["test"])[:3] == ["CMD", "swingshift", "healthy"]
    assert set(section(parsed(TEXT).to_dict(), "secrets")) == {"users.acl", *ROLES} - {"monitor"}


def test_the_image_is_made_of_files_that_are_there_and_runs_as_nobody_special() -> None:
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    copied = [source for line in lines if line[0] == "COPY" for source in line[1:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert ["USER", "swingshift"] in lines
    assert 'ENTRYPOINT ["swingshift"]' in (ROOT / "Dockerfile").read_text()


class Machine:
    """Runs what the file says without containers: paths and the server's address are this machine's."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self._variables = variables

    def here(self, text: object) -> str:
        """A word of the file, with its variables filled in."""
        filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: self._variables.get(found[1], found[2]), str(text))
        for theirs, ours in (
            ("/run/secrets", str(self.folder / "secrets")),
            ("redis:6379", f"127.0.0.1:{self.port}"),
            ("-h redis -p 6379", f"-h 127.0.0.1 -p {self.port}"),
            ("$$", "$"),
        ):
            filled = filled.replace(theirs, ours)
        return re.sub(r"(^|=)/runs\b", rf"\g<1>{self.folder / 'runs'}", filled)

    def command(self, service: Service) -> list[str]:
        return [self.here(word) for word in words(service["command"])]

    def environment(self, service: Service) -> dict[str, str]:
        return {name: self.here(value) for name, value in section(service, "environment").items()}

    @contextmanager
    def redis(self, service: Service) -> Iterator[None]:
        program, *options = self.command(service)
        assert program == "redis-server"
        with running(debian_binary(), self.folder, *options, "--port", "PORT", port=self.port):
            yield

    def is_healthy(self, service: Service) -> bool:
        """Runs the service's health command as it stands."""
        test = section(service, "healthcheck")["test"]
        command = ["sh", "-c", self.here(test)] if isinstance(test, str) else [*COMMAND, *map(self.here, words(test)[2:])]
        done = subprocess.run(command, env=QUIET | self.environment(service), capture_output=True, check=False, timeout=PATIENCE_S)
        return done.returncode == 0

    def wait_until_healthy(self, names: Sequence[str], found: Mapping[str, Service]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        for name in names:
            while not self.is_healthy(found[name]):
                assert time.monotonic() < give_up, f"{name} does not get healthy"


def test_what_the_file_says_started_as_plain_processes_is_a_whole_run(tmp_path: Path) -> None:
    config = tmp_path / "short.yaml"
    config.write_text(SCRIPTED.replace("total_steps: 4", "total_steps: 100000").replace("2000}", "2000, seconds_per_step: 0.05}"))
    found, machine = services(), Machine(tmp_path, {"CONFIG": str(config), "RUN": "composed"})
    swingshift("acl", str(tmp_path / "secrets"))
    with machine.redis(found["redis"]), Served(tmp_path) as served:
        machine.wait_until_healthy(["redis"], found)
        plan = machine.command(found["plan"]), machine.environment(found["plan"])
        for _ in range(2):  # the second time there is nothing to be done
            assert swingshift(*plan[0], environment=plan[1])
        assert not machine.is_healthy(found["trainer"])
        for name in SERVED:
            served.start(name, machine.command(found[name]), machine.environment(found[name]), tmp_path)
        machine.wait_until_healthy(SERVED, found)
        operator = machine.environment(found["cli"])
        runs = ["--runs", str(tmp_path / "runs")]
        assert "composed (running)" in swingshift(*machine.command(found["cli"]), *runs, environment=operator)
        swingshift("stop", "composed", *runs, environment=operator)
        served.wait()
    with Recording.open(tmp_path / "runs" / "composed") as recording:
        entries = list(recording.entries())
    assert [entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)] == ["stopped"]
    assert "passed: the chain is whole" in swingshift("replay", "verify", str(tmp_path / "runs" / "composed"))
