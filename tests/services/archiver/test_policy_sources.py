"""The files of users' policies are in a recording's `code/`, whatever it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.entry import Entry
from bus.events import Event, PolicyAttached, PolicyRequested
from bus.recording import Row
from services.archiver.policy_sources import PolicySources
from tests.disks import largest_file
from tests.policies.logs import plan


def row(event: Event) -> Row:
    return Row.of(Entry(1, "x", 0, False, 0, 0, "c", event))


def requested(source: str, name: str = "my/mine.py:Mine") -> PolicyRequested:
    return PolicyRequested(action="shadow", name=name, source=source)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def test_each_text_is_written_once_and_another_of_the_same_name_beside_it(tmp_path: Path) -> None:
    sources = PolicySources(tmp_path / "code")
    sources.take([row(plan(policy="my/mine.py:Mine", policy_source="first"))])
    attached = PolicyAttached(name="my/mine.py:Mine", params={}, mode="active", code="", source="first")
    sources.take([row(attached), row(requested("second")), row(requested("third", "other.py:Mine")), row(requested("second"))])
    found = files(tmp_path / "code")
    assert sorted(found.values()) == ["first", "second", "third"]
    assert (found["mine.py"], found["other.py"]) == ("first", "third")
    assert [name for name in found if name.startswith("mine-") and name.endswith(".py")] != []


def test_built_in_policies_have_no_file(tmp_path: Path) -> None:
    PolicySources(tmp_path / "code").take([row(plan()), row(PolicyRequested(action="swap", name="default"))])
    assert files(tmp_path / "code") == {}


def test_what_the_disk_did_not_take_is_written_when_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources, text = PolicySources(tmp_path / "code"), "#" * 5000
    with largest_file(1000):
        sources.take([row(requested(text))])
    assert "a policy's file is not written, its text is in the log: policy=my/mine.py:Mine" in caplog.text
    assert "mine.py" not in files(tmp_path / "code")
    sources.take([])
    assert files(tmp_path / "code") == {"mine.py": text}
