"""What nodes get of this checkout, alone and within a job that was submitted (`ray job submit`), whose environment Ray merges with ours.

The dashboard, which takes jobs, is not needed for that.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.launcher.on_ray.runtime_env import CHECKOUT, NEVER, SENT, SUBMITTED, excluded, runtime_env, submitted_env
from services.launcher.on_ray.site import refuse_passing

JOB = {"working_dir": "gcs://_ray_pkg_1.zip", "env_vars": {"A": "1"}}
MOST_BYTES = 100 << 20


def submitted(environment: object) -> dict[str, str]:
    return {SUBMITTED: json.dumps({"runtime_env": environment, "metadata": {"job_submission_id": "raysubmit_1"}})}


def test_from_a_checkout_nodes_get_its_packages_and_nothing_else() -> None:
    environment = runtime_env({}, None)
    assert environment == {"working_dir": str(CHECKOUT), "excludes": excluded(CHECKOUT)}
    sent = [path for path in CHECKOUT.iterdir() if f"/{path.name}" not in excluded(CHECKOUT)]
    assert sorted(path.name for path in sent) == sorted(SENT)
    files = [path for each in sent for path in (each.rglob("*") if each.is_dir() else [each]) if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_what_is_sent_is_a_checkout_that_services_can_be_started_from(tmp_path: Path) -> None:
    """As Ray unpacks it on a node: no installation, and nothing of the original is on the path."""
    for name in SENT:
        (tmp_path / name).symlink_to(CHECKOUT / name)
    code = "import services, pathlib; print(pathlib.Path(services.__file__).parent.parent); import services.entry"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path)


def test_what_is_left_out_stays_out_wherever_it_lies() -> None:
    assert any(fnmatch.fnmatch("services/launcher/x.pyc", pattern) for pattern in NEVER)


def test_settings_of_the_user_go_with_it() -> None:
    environment = runtime_env({"pip": ["tiktoken"], "env_vars": {"B": "2"}, "excludes": ["examples/data/"]}, None)
    assert (environment["pip"], environment["env_vars"]) == (["tiktoken"], {"B": "2"})
    assert environment["excludes"] == [*excluded(CHECKOUT), "examples/data/"]


def test_a_working_dir_of_the_users_own_is_taken_as_it_is() -> None:
    assert runtime_env({"working_dir": "s3://bucket/checkout.zip"}, None) == {"working_dir": "s3://bucket/checkout.zip"}


def test_in_a_submitted_job_its_working_dir_is_taken_and_nothing_is_said_twice() -> None:
    """Ray refuses what is said twice, even if it is the same."""
    assert runtime_env({}, submitted_env(submitted(JOB))) == {}
    assert runtime_env({"env_vars": {"A": "1", "B": "2"}}, JOB) == {"env_vars": {"B": "2"}}
    assert runtime_env({"pip": ["x"], "env_vars": {"A": "1"}}, JOB | {"pip": ["x"]}) == {}


def test_a_job_without_a_working_dir_gets_this_checkout() -> None:
    assert runtime_env({}, submitted_env(submitted({"env_vars": {"A": "1"}})))["working_dir"] == str(CHECKOUT)
    assert runtime_env({}, submitted_env(submitted(None)))["working_dir"] == str(CHECKOUT)


def test_what_ray_makes_of_both_is_what_was_meant() -> None:
    """The merging itself is Ray's: the same function as for a real job."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.runtime_env.runtime_env import _merge_runtime_env

    ours = runtime_env({"env_vars": {"A": "1", "B": "2"}}, JOB)
    assert _merge_runtime_env(JOB, ours) == {"working_dir": JOB["working_dir"], "env_vars": {"A": "1", "B": "2"}}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"working_dir": "/elsewhere"}, "working_dir"),
        ({"env_vars": {"A": "2"}}, "env_vars.A"),
        ({"env_vars": {"A": "2"}, "working_dir": "/elsewhere"}, "working_dir, env_vars.A"),
    ],
)
def test_settings_that_contradict_the_job_are_refused_by_name(asked: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.runtime_env sets {named} otherwise than the job that was submitted"):
        runtime_env(asked, JOB)


def test_a_process_that_is_no_jobs_driver_has_no_environment_of_one() -> None:
    assert submitted_env({}) is None


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"runtime_env": 3}'])
def test_an_environment_of_a_job_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="submit"):
        submitted_env({SUBMITTED: text})


def test_a_folder_that_ray_takes_away_with_the_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"folder is runs, within {tmp_path}, which Ray made for this job and takes away after it"):
        refuse_passing(Path("runs"), JOB)
    refuse_passing(tmp_path.parent / "shared", JOB)
    refuse_passing(Path("runs"), None)
    refuse_passing(Path("runs"), {"env_vars": {"A": "1"}})
