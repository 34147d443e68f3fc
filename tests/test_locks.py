"""The locked packages are what pyproject.toml asks for, and the same in both environments where vLLM allows it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
WANTED_OTHERWISE_BY_VLLM = {"numpy", "setuptools", "torch", "transformers"}
BREAKS_VLLM_ON_CPUS = {"torchvision", "torchaudio", "torchcodec"}


def locked(lock: str) -> dict[str, Version]:
    lines = (Requirement(line) for line in (ROOT / lock).read_text().splitlines() if not line.startswith("#"))
    return {canonicalize_name(line.name): Version(str(line.specifier).removeprefix("==")) for line in lines}


def asked_for(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        Requirement(line)
        for line in (*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra]))
    ]


@pytest.mark.parametrize(
    ("lock", "extras"), [("requirements.lock", ("local", "dev")), ("requirements-vllm.lock", ("local", "data", "math"))]
)
def test_a_lock_has_what_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    versions = locked(lock)
    wrong = [str(line) for line in asked_for(*extras) if not line.specifier.contains(versions.get(canonicalize_name(line.name), "0"))]
    assert wrong == []


def test_the_environment_of_vllm_has_other_versions_only_where_vllm_wants_them() -> None:
    ours, with_vllm = locked("requirements.lock"), locked("requirements-vllm.lock")
    assert {name for name in ours.keys() & with_vllm.keys() if ours[name] != with_vllm[name]} == WANTED_OTHERWISE_BY_VLLM
    assert ours["torch"].public == with_vllm["torch"].public
    assert BREAKS_VLLM_ON_CPUS & with_vllm.keys() == set()
