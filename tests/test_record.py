"""`swingshift record RUN -o DIR`: one more recording of a run, from wherever its entries and payloads are by now."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
import typer

from bus.errors import SwingshiftError
from bus.events import RunEnded, ServiceStopped
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.trimming import Trimming
from services.cli.record import Recorded, record, record_command
from services.launcher.folders import FoundRun
from tests.bus.factories import plan
from tests.services.archiver.runs import Run, ended, sample
from tests.serving import COMMAND, PATIENCE_S, QUIET, swingshift


@pytest.fixture
def archived(redis_url: str, run: str, tmp_path: Path) -> Iterator[Run]:
    with closing(Run(redis_url, run, tmp_path / "run")) as made:
        yield made


def end(archived: Run) -> int:
    return archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))


def recorded(folder: Path) -> tuple[list[int], dict[str, bytes]]:
    """Positions and payloads."""
    with Recording.open(folder) as recording, PayloadRecording.open(folder) as payloads:
        return [row.position for row in recording.rows()], {name: payloads.get(name) for name in payloads.names()}


def forget(archived: Run, samples: int, up_to: int) -> None:
    """What a janitor does once all of this is recorded and trained."""
    with closing(RedisBlobs(archived.url, archived.run)) as blobs:
        blobs.delete([f"sample:{number}" for number in range(samples)])
    with closing(Trimming(archived.url, archived.run, archived.log.log_id)) as trimming:
        assert trimming.trim(up_to) > 0


def test_a_run_that_has_ended_is_recorded_from_its_server_with_all_that_a_runs_folder_has(archived: Run, tmp_path: Path) -> None:
    archived.samples(0, 30)
    last = end(archived) + 1
    target = tmp_path / "mine"
    text = swingshift("record", archived.run, "-o", str(target), "--redis", archived.url, "--runs", str(tmp_path))
    assert f"run {archived.run} is recorded in {target}: entries 1 to {last}, all of it" in text
    positions, payloads = recorded(target)
    assert positions == list(range(1, last + 1))
    assert payloads == {f"sample:{number}": sample(number) for number in range(30)}
    assert sorted(path.name for path in target.iterdir()) == [
        "code", "config.yaml", "events.sqlite", "payloads.sqlite", "run.json", "summary.json",
    ]  # fmt: skip
    with Recording.open(target) as recording:
        assert json.loads((target / "summary.json").read_text())["last_chain"] == recording.meta().last_chain
    assert json.loads((target / "run.json").read_text())["redis"] == archived.url
    again = swingshift("record", archived.run, "-o", str(target), "--redis", archived.url, "--runs", str(tmp_path))
    assert f"entries 1 to {last}, all of it" in again
    with closing(Trimming(archived.url, archived.run, archived.log.log_id)) as trimming:
        assert trimming.positions() == {}, "an observer holds back nothing"


def test_it_ends_in_order_when_it_is_interrupted_and_goes_on_with_the_same_command(archived: Run, tmp_path: Path) -> None:
    archived.samples(0, 10)
    target = tmp_path / "mine"
    command = ["record", archived.run, "-o", str(target), "--redis", archived.url, "--runs", str(tmp_path)]
    process = begin(archived, [*COMMAND, *command])
    wait_until_recorded(target, 12)
    process.send_signal(signal.SIGINT)
    text = " ".join(process.communicate(timeout=PATIENCE_S)[0].decode().split())
    assert process.returncode == 130, text
    assert f"is recorded in {target}: entries 1 to 12, the same command goes on with it" in text
    archived.samples(10, 10)
    end(archived)
    assert "entries 1 to 24, all of it" in swingshift(*command)
    assert recorded(target) == (list(range(1, 25)), {f"sample:{number}": sample(number) for number in range(20)})


def begin(archived: Run, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that is killed at the end if it is still there by then."""
    archived.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=QUIET))
    return archived.processes[-1]


def wait_until_recorded(folder: Path, position: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    found = 0
    while found < position:
        assert time.monotonic() < deadline, f"{found} of {position} entries are recorded"
        time.sleep(0.05)
        with suppress(SwingshiftError), Recording.open(folder) as recording:
            found = recording.last_position()


@pytest.mark.parametrize("here", [True, False])
def test_what_the_server_has_forgotten_comes_from_the_runs_own_recording_or_through_its_archiver(
    archived: Run, tmp_path: Path, here: bool
) -> None:
    process = archived.start()
    archived.wait_until_recorded(archived.samples(0, 300) + 299)
    forget(archived, 300, 250)
    archived.samples(300, 20)
    target, said = tmp_path / "mine", list[Recorded]()
    found = FoundRun(archived.run, archived.url, archived.folder if here else tmp_path / "elsewhere")
    recording = threading.Thread(target=lambda: said.append(record(found, target)))
    recording.start()
    wait_until_recorded(target, 323)
    end(archived)
    recording.join(PATIENCE_S)
    assert ended(process) == 0
    assert [(result.ended, result.position in (325, 326)) for result in said] == [(True, True)]
    positions, payloads = recorded(target)
    assert positions[:325] == list(range(1, 326))
    assert payloads == {f"sample:{number}": sample(number) for number in range(320)}


def told(capsys: pytest.CaptureFixture[str], named: str, redis: str | None, runs: Path, to: Path) -> str:
    """What the command says when it cannot be followed."""
    with pytest.raises(typer.Exit) as ended:
        record_command(named, redis, runs, to)
    assert ended.value.exit_code == 2
    return capsys.readouterr().err


def test_the_runs_own_folder_is_refused(redis_url: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RedisLog.create(redis_url, plan(run), at=1).close()
    text = told(capsys, run, redis_url, tmp_path, tmp_path / run)
    assert f"{tmp_path / run} is the folder of the run itself, where its archiver records" in text
    assert not (tmp_path / run).exists()


def test_a_run_without_a_server_is_told_where_its_recording_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text('{"run": "old", "redis": null}')
    text = told(capsys, "old", None, tmp_path, tmp_path / "mine")
    assert "no server is known that has run old: name it with --redis URL. A run that has ended is recorded in its folder already" in text
