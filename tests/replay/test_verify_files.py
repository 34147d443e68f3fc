"""What lies beside the entries of a recording, payloads that they name, initial weights, checkpoints: what was changed is named."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
import zstandard

from bus.blobs import DIGEST_BYTES, blob_digest
from bus.entry import Entry
from bus.events import CheckpointSaved, GenerationFinished, SampleReady
from bus.host import rebuild_in_order
from bus.payload_recording import FILE_NAME
from bus.snapshot import freeze
from bus.snapshot_table import Snapshot, SnapshotTable
from replay.differences import Difference
from services.learner.checkpoint import write_checkpoint
from services.trainer.core import TrainerCore
from tests.replay.recordings import check, execute, payload, save, simulated_with, with_payloads
from tests.simulation.services import CODE
from tests.simulation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("SampleReady", "CheckpointSaved", "SwitchDone", crashes=False)


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path, with_payloads(tmp_path, world))


def change(folder: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def differences(folder: Path) -> list[Difference]:
    report = check(folder)
    assert not report.passed
    return report.differences


def first(world: World, kind: type[SampleReady] | type[GenerationFinished]) -> tuple[Entry, str]:
    entry = next(entry for entry in world.store.entries if isinstance(entry.event, kind) and entry.event.blob is not None)
    assert isinstance(entry.event, SampleReady | GenerationFinished)
    assert entry.event.blob is not None
    return entry, entry.event.blob.name


# --- payloads -------------------------------------------------------------------------------------------------------------------


def test_payloads_that_are_as_they_were_named_pass_and_are_counted(folder: Path, world: World) -> None:
    report = check(folder)
    assert report.passed, report.differences[0]
    named = [entry.event for entry in world.store.entries if isinstance(entry.event, SampleReady | GenerationFinished)]
    assert (report.payloads, report.unchecked_payloads) == (sum(event.blob is not None for event in named), 0)


def test_without_recorded_payloads_those_that_are_named_are_counted(tmp_path: Path, world: World) -> None:
    report = check(save(tmp_path, world.store))
    assert report.passed
    assert report.payloads == 0
    assert report.unchecked_payloads > 0


def test_a_payload_that_was_changed_is_named(folder: Path, world: World) -> None:
    entry, name = first(world, SampleReady)
    assert isinstance(entry.event, SampleReady)
    change(folder, "UPDATE payloads SET zstd = ? WHERE name = ?", zstandard.compress(payload(name).replace(b"p", b"q")), name)
    (found,) = differences(folder)
    assert (found.position, found.sort) == (entry.position, "payload")
    assert found.what.startswith(f"the payload of sample {entry.event.sample}: payload {name!r} in {folder / FILE_NAME} is damaged")


def test_a_payload_that_was_replaced_with_its_digest_is_named(folder: Path, world: World) -> None:
    entry, name = first(world, SampleReady)
    other = b"another"
    values = (zstandard.compress(other), len(other), blob_digest(other), name)
    change(folder, "UPDATE payloads SET zstd = ?, num_bytes = ?, digest = ? WHERE name = ?", *values)
    (found,) = differences(folder)
    assert found.position == entry.position
    assert f"payload {name!r} has digest {blob_digest(other)}" in found.what


def test_a_payload_that_is_missing_is_named(folder: Path, world: World) -> None:
    entry, name = first(world, GenerationFinished)
    assert isinstance(entry.event, GenerationFinished)
    change(folder, "DELETE FROM payloads WHERE name = ?", name)
    (found,) = differences(folder)
    assert found.position == entry.position
    assert f"the payload of answer {entry.event.request}, attempt {entry.event.attempt}: payload {name!r} is not in" in found.what


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x28\xb5\x2f\xfd\xff\xff"])
def test_a_payload_that_cannot_be_unpacked_is_named(folder: Path, world: World, data: bytes) -> None:
    _, name = first(world, SampleReady)
    change(folder, "UPDATE payloads SET zstd = ? WHERE name = ?", data, name)
    (found,) = differences(folder)
    assert name in found.what


def test_a_file_of_payloads_that_cannot_be_read_is_a_difference(folder: Path) -> None:
    (folder / FILE_NAME).write_bytes(b"no database" * 100)
    (found,) = differences(folder)
    assert (found.position, found.sort) == (0, "payload")
    assert found.what.startswith("no payload can be checked: ")


def test_damage_within_the_file_of_payloads_does_not_end_the_verification(folder: Path, world: World) -> None:
    path = folder / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(bytes(content))
    report = check(folder)
    assert report.entries == len(world.store.entries)
    assert {difference.sort for difference in report.differences} == {"payload"}


# --- weights --------------------------------------------------------------------------------------------------------------------


def initial(folder: Path) -> Path:
    """Initial weights, as they are kept with a recording."""
    weights = folder / "weights" / "initial"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    files = {"config.json": {"num_bytes": 2, "digest": blake2b(b"{}", digest_size=DIGEST_BYTES).hexdigest()}}
    (folder / "weights" / "initial.json").write_text(json.dumps({"path": "/models/m", "copied": True, "files": files}))
    return weights / "config.json"


def checkpoint(folder: Path, world: World) -> tuple[int, Path]:
    """The first checkpoint of the run: where it is in the log, and its folder."""
    saved = next(entry for entry in world.store.entries if isinstance(entry.event, CheckpointSaved))
    assert isinstance(saved.event, CheckpointSaved)
    path = folder / "checkpoints" / saved.event.uri
    write_checkpoint(path, {"kind": "test", "step": 1}, {"model": {"w": torch.zeros(2)}})
    return saved.position, path


def test_weights_and_checkpoints_that_are_whole_pass_and_are_counted(folder: Path, world: World) -> None:
    initial(folder)
    checkpoint(folder, world)
    report = check(folder)
    assert report.passed, report.differences[0]
    assert report.weights == 3


def test_an_initial_file_that_was_changed_is_named(folder: Path) -> None:
    path = initial(folder)
    path.write_text("[]")
    (found,) = differences(folder)
    assert (found.position, found.sort, found.what) == (0, "weights", f"{path} has another content than was written")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_torn_checkpoint_is_named(folder: Path, world: World, name: str) -> None:
    position, path = checkpoint(folder, world)
    (path / name).write_bytes((path / name).read_bytes()[:-1])
    (found,) = differences(folder)
    assert (found.position, found.sort, found.what) == (position, "weights", f"{path / name} has another content than was written")


def test_a_checkpoint_that_lacks_a_file_or_its_digests_is_named(folder: Path, world: World) -> None:
    position, path = checkpoint(folder, world)
    (path / "model.safetensors").unlink()
    (found,) = differences(folder)
    assert (found.position, found.what) == (position, f"{path / 'model.safetensors'} cannot be read: No such file or directory")
    (path / "digests.json").unlink()
    (found,) = differences(folder)
    assert found.what.startswith(f"{path / 'digests.json'} cannot be read")


# --- snapshots ------------------------------------------------------------------------------------------------------------------


def keep(folder: Path, world: World, share: float, **changes: object) -> Snapshot:
    """Keeps a snapshot of the trainer in the middle of the run, some of it otherwise than the entries give it."""
    entries, core = world.store.entries, TrainerCore()
    place = entries[int(share * len(entries))]
    own = [entry for entry in entries if entry.derived and entry.source == core.source and entry.cause <= place.position]
    rebuild_in_order(core, entries[: place.position], own)
    for name, value in changes.items():
        setattr(core, name, value)
    through = entries[max(own[-1].position if own else 0, place.position) - 1]
    snapshot = Snapshot("trainer", CODE, place.position, through.position, through.chain, freeze(core))
    with SnapshotTable.open(folder) as table:
        table.put([snapshot])
    return snapshot


@pytest.fixture
def plain(tmp_path: Path, world: World) -> Path:
    return save(tmp_path, world.store)


def test_snapshots_that_are_what_the_entries_give_pass_and_are_counted(plain: Path, world: World) -> None:
    for share in (0.2, 0.5, 0.9):
        keep(plain, world, share)
    report = check(plain)
    assert report.passed, report.differences[0]
    assert report.snapshots == 3


def test_a_snapshot_that_is_not_what_the_entries_give_is_named_with_what_differs(plain: Path, world: World) -> None:
    snapshot = keep(plain, world, 0.5, granted="perhaps")
    (found,) = differences(plain)
    assert (found.position, found.source, found.sort) == (snapshot.position, "trainer", "snapshot")
    assert [(field.path, field.recorded) for field in found.fields] == [("granted", "'perhaps'")]


def test_a_snapshot_that_cannot_be_read_misleads_nobody(plain: Path, world: World) -> None:
    keep(plain, world, 0.5)
    execute(plain, "UPDATE snapshots SET state = x'00'")
    report = check(plain)
    assert report.passed
    assert report.snapshots == 0


def test_a_snapshot_of_a_log_that_went_another_way_is_left_alone(plain: Path, world: World) -> None:
    snapshot = keep(plain, world, 0.5, granted="perhaps")
    with SnapshotTable.open(plain) as table:
        table.put([replace(snapshot, chain="0" * 40)])
    assert check(plain).passed


@pytest.mark.parametrize("column", ["code", "source"])
def test_a_snapshot_of_other_code_is_left_alone(plain: Path, world: World, column: str) -> None:
    keep(plain, world, 0.5, granted="perhaps")
    execute(plain, f"UPDATE snapshots SET {column} = 'policy'")
    report = check(plain)
    assert report.passed
    assert report.snapshots == 0
