"""What a store has for whom, and replicas that see a folder late or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bus.errors import WeightsError
from services.machine import host_of, machine_id
from services.weights import fetcher
from services.weights.fetcher import WeightFetcher
from services.weights.store import WeightStore, load_weights
from tests.services.weights.test_fetcher import asked
from tests.services.weights.test_store import make_weights, path_of


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return store_on("A", tmp_path)


def store_on(machine: str, folder: Path) -> WeightStore:
    (folder / machine).mkdir(exist_ok=True)
    return WeightStore("run-1", folder=folder / "shared", shm_root=folder / machine)


def test_with_replicas_on_other_machines_auto_takes_the_folder_and_without_one_there_is_only_memory(tmp_path: Path) -> None:
    assert store_on("A", tmp_path).publish(make_weights(), 0, 0, 1, beyond=True).transport == "file"
    assert WeightStore("run-2", folder=None, shm_root=tmp_path / "A").publish(make_weights(), 0, 0, 1, beyond=True).transport == "shm"
    on_purpose = WeightStore("run-3", "shm", folder=tmp_path / "shared", shm_root=tmp_path / "A")
    assert on_purpose.publish(make_weights(), 0, 0, 1, beyond=True).transport == "shm"


def test_what_is_in_memory_is_copied_into_the_folder_under_its_name_and_both_go_when_it_is_retired(
    store: WeightStore, tmp_path: Path
) -> None:
    notice = store.publish(make_weights(), 0, 0, 1)
    assert (store.find(notice.uri), store_on("B", tmp_path).find(notice.uri)) == ("memory", "gone")
    shared = store.share(notice.uri)
    assert shared is not None
    assert (shared.num_bytes, store_on("B", tmp_path).find(notice.uri)) == (notice.num_bytes, "folder")
    assert load_weights(notice.uri, notice.digest, tmp_path / "shared").path == tmp_path / "shared" / path_of(notice).name
    store.publish(make_weights(1), 1, 0, 1)
    assert store.retire([]) == [notice.uri, shared.uri]
    assert not list((tmp_path / "shared").iterdir())


def test_what_is_gone_is_not_copied_and_can_be_put_back(store: WeightStore, tmp_path: Path) -> None:
    notice = store.publish(make_weights(), 0, 0, 1)
    path_of(notice).unlink()
    assert store.share(notice.uri) is None
    assert not list((tmp_path / "shared").iterdir())
    store.put_back(notice.uri, make_weights())
    assert store.find(notice.uri) == "folder"
    assert load_weights(notice.uri, notice.digest, tmp_path / "shared").digest == notice.digest


def test_a_folder_that_cannot_be_written_is_said_with_what_to_do(store: WeightStore, tmp_path: Path) -> None:
    notice = store.publish(make_weights(), 0, 0, 1)
    (tmp_path / "shared").write_text("in the way")
    with pytest.raises(WeightsError, match=r"cannot be written to .*shared/weights-e1-v0-r0.safetensors: .*make room, or set"):
        store.share(notice.uri)


def test_a_trainer_that_was_replaced_removes_nothing_of_its_successor_nor_what_that_is_putting_back(tmp_path: Path) -> None:
    old, new = store_on("A", tmp_path), store_on("B", tmp_path)
    lost = old.publish(make_weights(), 0, 0, 1, beyond=True)
    coming = path_of(lost).with_name(path_of(lost).name + ".partial")
    coming.write_bytes(b"half of it")
    newest = new.publish(make_weights(1), 1, 0, 2, beyond=True)
    old.publish(make_weights(2), 1, 0, 1, beyond=True)
    old.retire({lost.uri})
    assert path_of(newest).is_file()
    assert coming.is_file()
    new.retire({newest.uri})
    assert list((tmp_path / "shared").iterdir()) == [path_of(newest)]


def test_weights_that_a_folder_shows_late_are_waited_for(store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "POLL_S", 0.01)
    notice = store.publish(make_weights(), 0, 0, 1, beyond=True)
    hidden = path_of(notice).rename(tmp_path / "hidden")
    showing = threading.Timer(0.1, lambda: hidden.rename(path_of(notice)))
    showing.start()
    fetched = WeightFetcher(tmp_path / "shared", patience_s=30).fetch(asked(notice))
    showing.join()
    assert fetched.weights.digest == notice.digest


def test_weights_that_never_come_are_told_with_where_they_were_looked_for(store: WeightStore, tmp_path: Path) -> None:
    notice = store.publish(make_weights(), 0, 0, 1)
    path_of(notice).unlink()
    with pytest.raises(WeightsError, match=r"\(0.05 s waited\).*let trainer and replicas share that folder"):
        WeightFetcher(tmp_path / "shared", patience_s=0.05).fetch(asked(notice))


def test_nobody_waits_for_weights_where_newer_ones_are(store: WeightStore, tmp_path: Path) -> None:
    notice = store.publish(make_weights(), 0, 0, 1)
    store.publish(make_weights(1), 1, 0, 1)
    store.retire([])
    with pytest.raises(WeightsError, match="take a newer publication"):
        WeightFetcher(tmp_path / "shared", patience_s=600).fetch(asked(notice))


def test_a_machine_is_a_start_of_its_kernel_and_a_mount_of_its_shared_memory(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    here = machine_id(boot)
    assert here == machine_id(boot)
    assert host_of(here) == "one"
    assert machine_id(boot, Path("/proc")) not in (here, machine_id(boot, Path("/sys"))), "another mount"
    boot.write_text("two\n")
    assert machine_id(boot) != here
    assert machine_id(tmp_path / "none", tmp_path / "none") == os.uname().nodename
