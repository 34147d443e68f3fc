"""The digest of the code that decides."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.code import ROOT, code_digest, service_code

SHOW = "from services.code import service_code; print(service_code('trainer'), service_code('policy', 'policies.default'))"


def digests_in(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", SHOW], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Another checkout of the same sources."""
    for package in ("bus", "policies", "services"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_digest_does_not_depend_on_where_the_sources_are(checkout: Path) -> None:
    assert digests_in(checkout) == f"{service_code('trainer')} {service_code('policy', 'policies.default')}"


@pytest.mark.parametrize("file", ["services/trainer/core.py", "bus/books.py", "bus/events/run.py", "services/learner/micro_batches.py"])
def test_the_digest_of_a_core_changes_with_what_it_imports(checkout: Path, file: str) -> None:
    with (checkout / file).open("a") as source:
        source.write("# changed\n")
    assert digests_in(checkout).split()[0] != service_code("trainer")


@pytest.mark.parametrize("file", ["services/trainer/shell.py", "bus/redis_log.py", "services/rollouter/core.py", "policies/fixed_ratio.py"])
def test_the_digest_of_a_core_does_not_change_with_what_it_does_not_import(checkout: Path, file: str) -> None:
    with (checkout / file).open("a") as source:
        source.write("# changed\n")
    assert digests_in(checkout) == f"{service_code('trainer')} {service_code('policy', 'policies.default')}"


def test_policies_have_digests_of_their_own() -> None:
    assert service_code("policy", "policies.default") != service_code("policy", "policies.fixed_ratio")


def test_a_module_that_is_not_ours_has_no_digest() -> None:
    with pytest.raises(ValueError, match="no module 'json'"):
        code_digest("json")
