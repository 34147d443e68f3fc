"""`make`: what is left out of the tests where, and what is said when something cannot be set up. Nothing is set up here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ELSEWHERE = "THIS_MACHINE=Darwin-arm64"
HERE = "THIS_MACHINE=Linux-x86_64"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh one, as far as `make` looks at it."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-ray.lock", "requirements-vllm.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, *arguments: str, status: int = 0) -> str:
    # As if nobody had called `make` before, which these tests are run by.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(["make", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_tests_on_vllm_are_left_out_elsewhere_and_that_is_said(checkout: Path) -> None:
    said = "The tests on vLLM are left out: its build for CPUs is for Linux-x86_64, this is Darwin-arm64."
    assert said in make(checkout, "test", "--dry-run", ELSEWHERE)
    assert "venv-vllm" not in make(checkout, "test", "--dry-run", ELSEWHERE)
    assert "vllm" not in make(checkout, "test-beside", "--dry-run", ELSEWHERE)


def test_the_tests_on_vllm_are_part_of_all_tests_and_their_environment_too(checkout: Path) -> None:
    recipe = make(checkout, "test", "--dry-run", HERE)
    assert "left out" not in recipe
    assert "make venv-vllm > build/vllm.txt" in recipe
    assert "make test-vllm > build/vllm.txt" in make(checkout, "test-beside", "--dry-run", HERE)


def test_vllm_for_cpus_is_not_set_up_on_another_machine(checkout: Path) -> None:
    assert "vLLM for CPUs is for Linux-x86_64, this is Darwin-arm64. On NVIDIA GPUs: docs/vllm.md" in make(
        checkout, "venv-vllm", ELSEWHERE, status=2
    )


def test_without_room_for_vllm_nothing_is_set_up(checkout: Path) -> None:
    output = make(checkout, "venv-vllm", HERE, "VLLM_GIB=100000000", status=2)
    assert "No room for .venv-vllm: it takes 100000000 GiB" in output
    assert not (checkout / ".venv-vllm").exists()


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("embedded", ".venv/bin/swingshift run examples/demo.yaml"),
        ("vllm", ".venv-vllm/bin/swingshift run examples/demo.yaml --set rollout.engine=vllm"),
    ],
)
def test_the_demo_runs_in_the_environment_of_its_engine(checkout: Path, engine: str, command: str) -> None:
    assert make(checkout, "demo", "--dry-run", f"ENGINE={engine}", HERE).splitlines()[-1].rstrip() == command


def test_an_engine_that_there_is_not_is_named(checkout: Path) -> None:
    assert "ENGINE is 'sglang': it can be embedded or vllm" in make(checkout, "demo", "ENGINE=sglang", status=2)
