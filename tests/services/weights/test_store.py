"""Published weights arrive whole and as published, or the reader is told what is wrong."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bus.errors import WeightsError
from services.learner.digests import weights_digest
from services.weights.store import WeightNotice, WeightStore, load_weights


def make_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "matrix": torch.randn(3, 5, generator=generator),
        "transposed": torch.randn(4, 2, generator=generator).T,
        "half": torch.randn(7, generator=generator).bfloat16(),
        "scalar": torch.tensor(seed),
        "empty": torch.zeros(0, 3),
    }


def path_of(notice: WeightNotice) -> Path:
    return Path(notice.uri.removeprefix("file://"))


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """Stands for /dev/shm: whether it is memory makes no difference here."""
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture(params=["shm", "file"])
def store(request: pytest.FixtureRequest, shm: Path, tmp_path: Path) -> WeightStore:
    return WeightStore("run-1", transport=request.param, folder=tmp_path / "shared", shm_root=shm)


def test_what_is_loaded_is_what_was_published(store: WeightStore) -> None:
    weights = make_weights()
    notice = store.publish(weights, version=3, revision=1, epoch=2)
    loaded = load_weights(notice.uri, notice.digest)
    assert set(loaded) == set(weights)
    for name, tensor in weights.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert (notice.version, notice.revision) == (3, 1)
    assert notice.num_bytes == path_of(notice).stat().st_size
    assert notice.seconds > 0


def test_file_names_carry_run_epoch_version_and_revision(shm: Path) -> None:
    notice = WeightStore("run-1", shm_root=shm).publish(make_weights(), version=3, revision=1, epoch=2)
    assert notice.transport == "shm"
    assert path_of(notice) == shm / "swingshift-run-1" / "weights-e2-v3-r1.safetensors"


def test_real_shared_memory_is_used_by_default_and_purged() -> None:
    store = WeightStore(f"test-{os.getpid()}")
    try:
        notice = store.publish(make_weights(), version=0, revision=0, epoch=1)
        assert notice.uri.startswith("file:///dev/shm/swingshift-test-")
        load_weights(notice.uri, notice.digest)
    finally:
        store.purge()
    assert not path_of(notice).parent.exists()


def test_the_digest_is_that_of_names_dtypes_shapes_and_bytes_only(shm: Path, tmp_path: Path) -> None:
    weights = make_weights()
    digests = {
        WeightStore("a", "shm", shm_root=shm).publish(weights, 1, 0, 1).digest,
        WeightStore("b", "file", folder=tmp_path / "shared").publish(dict(reversed(weights.items())), 7, 3, 9).digest,
        weights_digest({name: tensor.clone() for name, tensor in weights.items()}),
    }
    assert len(digests) == 1


def test_the_digest_follows_its_definition() -> None:
    tensor = torch.tensor([[1.0, 2.0]])
    content = bytes.fromhex("0000803f00000040")
    expected = hashlib.sha256(b'["w", "float32", [1, 2]]\n' + hashlib.sha256(content).digest()).hexdigest()
    assert weights_digest({"w": tensor}) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.zeros(4)},
        {"w": torch.zeros(2, 2)},
        {"w": torch.zeros(4, dtype=torch.int32)},
        {"w": torch.tensor([0.0, 0.0, 0.0, -0.0])},
        {"w": torch.zeros(4), "x": torch.zeros(0)},
    ],
)
def test_another_name_shape_dtype_bit_or_tensor_is_another_digest(other: dict[str, torch.Tensor]) -> None:
    assert weights_digest(other) != weights_digest({"w": torch.zeros(4)})


def test_a_torn_file_is_refused(store: WeightStore) -> None:
    notice = store.publish(make_weights(), 1, 0, 1)
    path_of(notice).write_bytes(path_of(notice).read_bytes()[:-5])
    with pytest.raises(WeightsError, match="are torn"):
        load_weights(notice.uri, notice.digest)


def test_a_changed_byte_is_refused_with_both_digests(store: WeightStore) -> None:
    notice = store.publish(make_weights(), 1, 0, 1)
    content = bytearray(path_of(notice).read_bytes())
    content[-1] ^= 1
    path_of(notice).write_bytes(content)
    with pytest.raises(WeightsError, match=f"have digest .* notice says {notice.digest}"):
        load_weights(notice.uri, notice.digest)


def test_missing_weights_and_unknown_transports_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nothing\.safetensors are gone"):
        load_weights((tmp_path / "nothing.safetensors").as_uri(), "0")
    with pytest.raises(WeightsError, match="nccl://0"):
        load_weights("nccl://0", "0")


def test_retire_removes_what_nobody_keeps_but_never_the_newest(store: WeightStore) -> None:
    notices = [store.publish(make_weights(version), version, 0, 1) for version in range(4)]
    retired = store.retire(keep={notices[1].uri})
    assert retired == [notices[0].uri, notices[2].uri]
    assert [path_of(notice).exists() for notice in notices] == [False, True, False, True]


def test_retire_also_removes_what_an_earlier_incarnation_left(store: WeightStore, shm: Path, tmp_path: Path) -> None:
    old = store.publish(make_weights(), 5, 0, epoch=1)
    half = path_of(old).with_name("weights-e1-v6-r0.safetensors.partial")
    half.write_bytes(b"half")
    successor = WeightStore("run-1", transport=old.transport, folder=tmp_path / "shared", shm_root=shm)
    new = successor.publish(make_weights(), 5, 1, epoch=2)
    assert successor.retire(keep=()) == [old.uri]
    assert list(path_of(new).parent.iterdir()) == [path_of(new)]


def test_loaded_weights_outlive_the_file(store: WeightStore) -> None:
    notice = store.publish(make_weights(1), 1, 0, 1)
    loaded = load_weights(notice.uri, notice.digest)
    store.purge()
    assert not path_of(notice).exists()
    assert weights_digest(loaded) == notice.digest


def test_purge_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    store = WeightStore("run-1", "file", folder=tmp_path)
    store.publish(make_weights(), 1, 0, 1)
    (tmp_path / "mine.txt").write_text("stay")
    store.purge()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_shared_memory_auto_takes_the_folder_and_says_so(tmp_path: Path) -> None:
    store = WeightStore("run-1", folder=tmp_path / "shared", shm_root=tmp_path / "no-shm")
    notice = store.publish(make_weights(), 1, 0, 1)
    assert notice.transport == "file"
    assert path_of(notice).parent == tmp_path / "shared"


def test_shared_memory_too_small_is_an_error_with_the_numbers(shm: Path) -> None:
    huge = {"w": torch.zeros(1).expand(10**15)}
    with pytest.raises(WeightsError, match=r"bytes free, weights of 4000000000000000 bytes"):
        WeightStore("run-1", "shm", shm_root=shm).publish(huge, 1, 0, 1)
    with pytest.raises(WeightsError, match="configure a shared folder"):
        WeightStore("run-1", "auto", shm_root=shm).publish(huge, 1, 0, 1)


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(store: WeightStore, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(WeightsError, match=r"version 1 \(400000 bytes\) cannot be written"):
            store.publish({"w": torch.zeros(100_000)}, 1, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_in_shared_memory_that_is_a_link_is_refused(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (shm / "swingshift-run-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="is a link or belongs to user"):
        WeightStore("run-1", "shm", shm_root=shm).publish(make_weights(), 1, 0, 1)


def test_shared_memory_is_readable_by_its_owner_only(shm: Path) -> None:
    WeightStore("run-1", "shm", shm_root=shm).publish(make_weights(), 1, 0, 1)
    assert (shm / "swingshift-run-1").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".hidden", "x" * 129])
def test_a_run_id_that_cannot_be_a_file_name_is_refused(run_id: str) -> None:
    with pytest.raises(WeightsError, match="run id"):
        WeightStore(run_id)


def test_transport_file_needs_a_folder() -> None:
    with pytest.raises(WeightsError, match="needs a folder"):
        WeightStore("run-1", "file")


def test_a_reader_racing_with_publish_and_retire_gets_whole_weights_or_is_told_they_are_gone(store: WeightStore) -> None:
    newest = [store.publish({"w": torch.zeros(2000)}, 0, 0, 1)]
    stop = threading.Event()
    surprises: list[BaseException] = []
    loads = [0]

    def read() -> None:
        while not stop.is_set():
            notice = newest[0]
            try:
                assert float(load_weights(notice.uri, notice.digest)["w"][0]) == notice.version
                loads[0] += 1
            except WeightsError as error:
                if "are gone" not in str(error):
                    surprises.append(error)
            except AssertionError as error:
                surprises.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for version in range(1, 150):
            newest[0] = store.publish({"w": torch.full((2000,), float(version))}, version, 0, 1)
            store.retire(keep=())
    finally:
        stop.set()
        thread.join(timeout=30)
    assert surprises == []
    assert loads[0] > 0


@pytest.fixture(autouse=True)
def _no_leftovers_in_shared_memory() -> Iterator[None]:
    yield
    assert list(Path("/dev/shm").glob(f"swingshift-test-{os.getpid()}*")) == []
