"""A replica gets the weights it was told of: what changed, if it has what that is of, else all of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bus.errors import WeightsError
from bus.events import WeightUpdateRequested
from services.engines.config import EngineConfig
from services.engines.script import Script, varying_length
from services.engines.scripted import ScriptedEngine
from services.learner.digests import weights_digest
from services.weights.fetcher import Fetched, Loaded, WeightFetcher
from services.weights.files import BASE
from services.weights.store import WeightNotice, WeightStore


@dataclass
class Story:
    """A trainer that publishes, each time with a few elements changed, and a replica that fetches."""

    folder: Path
    store: WeightStore
    fetcher: WeightFetcher
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    version: int = -1

    def publish(self, revision: int = 0) -> WeightNotice:
        if not self.weights:
            generator = torch.Generator().manual_seed(0)
            self.weights = {
                "w": torch.randn(100, 300, generator=generator).bfloat16(),
                "norm": torch.ones(300),
                "scalar": torch.tensor(1.0),
            }
        else:
            self.weights = {name: tensor.clone() for name, tensor in self.weights.items()}
            self.weights["w"][self.version % 100, ::7] += 1
        self.version += 1 if revision == 0 else 0
        notice = self.store.publish(self.weights, self.version, revision, 1)
        self.store.retire({notice.uri})
        return notice

    def fetch(self, notice: WeightNotice) -> Fetched:
        """What the replica gets; it is the publication whichever way it came."""
        fetched = self.fetcher.fetch(asked(notice))
        assert weights_digest(fetched.weights) == fetched.weights.digest == notice.digest
        assert weights_digest(load_file(fetched.weights.path)) == notice.digest, "other processes find them there"
        return fetched


def asked(notice: WeightNotice) -> WeightUpdateRequested:
    return WeightUpdateRequested(
        replica="s0", epoch=1, version=notice.version, revision=notice.revision, uri=notice.uri, digest=notice.digest, delta=notice.delta
    )


def how(fetched: Fetched) -> Loaded:
    """What the replica says of it, after an engine took them."""
    engine = ScriptedEngine(EngineConfig(kind="scripted", max_running_requests=1, max_model_len=64), Script(varying_length(1, 2), 1e3))
    engine.start()
    engine.wake()
    loaded = fetched.load_into(engine)
    engine.close()
    return loaded


def delta_file(notice: WeightNotice) -> Path:
    assert notice.delta is not None
    return Path(notice.delta.uri.removeprefix("file://"))


def unnamed_files() -> int:
    """Copies of weights that this process has in memory."""
    return sum("memfd:swingshift" in os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name))


def _is_open(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


@pytest.fixture(params=["shm", "file"])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    (tmp_path / "shm").mkdir()
    store = WeightStore("run-1", request.param, folder=tmp_path / "shared", shm_root=tmp_path / "shm", delta="on")
    fetcher = WeightFetcher(tmp_path / "shared", "on")
    yield Story(tmp_path, store, fetcher)
    fetcher.close()


def test_a_replica_that_keeps_up_reads_only_what_changed(story: Story) -> None:
    first = story.publish()
    assert how(story.fetch(first)) == Loaded("file", first.num_bytes)
    for _ in range(3):
        notice = story.publish()
        assert notice.delta is not None
        assert (notice.delta.base_version, notice.delta.num_bytes) == (notice.version - 1, delta_file(notice).stat().st_size)
        assert notice.delta.num_bytes < notice.num_bytes / 20
        assert how(story.fetch(notice)) == Loaded("delta", notice.delta.num_bytes)
    assert unnamed_files() == 1, "there is one copy of the weights, whatever the number of updates"
    story.fetcher.close()
    assert unnamed_files() == 0


def test_a_replica_that_has_another_version_takes_the_whole_weights_and_keeps_up_from_there(story: Story) -> None:
    story.fetch(story.publish())
    story.publish()
    late = story.publish()
    assert how(story.fetch(late)).transport == "file"
    assert how(story.fetch(story.publish())).transport == "delta"


def test_a_version_that_is_published_again_has_no_delta_and_is_a_base_by_its_revision(story: Story) -> None:
    story.fetch(story.publish())
    first, again = story.publish(), story.publish(revision=1)
    assert again.delta is None
    assert how(story.fetch(first if first.delta is None else again)).transport == "file"
    following = story.publish()
    assert following.delta is not None
    assert (following.delta.base_version, following.delta.base_revision) == (1, 1)
    assert how(story.fetch(following)).transport == "delta"


def test_a_delta_to_a_revision_that_the_replica_does_not_have_is_left_alone(story: Story) -> None:
    story.fetch(story.publish())
    story.fetch(story.publish())
    story.publish(revision=1)
    assert how(story.fetch(story.publish())).transport == "file"


def change_value(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def of_other_weights(path: Path) -> None:
    save_file(load_file(path), path, {BASE: "0" * 64})


def one_missing(path: Path) -> None:
    with_all = load_file(path)
    del with_all["w:values"]
    save_file(with_all, path)


@pytest.mark.parametrize("damage", [Path.unlink, cut, change_value, of_other_weights, one_missing, lambda path: path.write_bytes(b"{}")])
def test_a_delta_that_is_gone_torn_or_wrong_costs_a_whole_sync_and_is_said(
    story: Story, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    story.fetch(story.publish())
    notice = story.publish()
    damage(delta_file(notice))
    with caplog.at_level(logging.WARNING):
        assert how(story.fetch(notice)).transport == "file"
    assert f"the whole weights are taken: version={notice.version} reason=" in caplog.text
    assert how(story.fetch(story.publish())).transport == "delta", "it keeps up from there"


def test_when_the_whole_weights_are_no_good_either_it_is_an_error(story: Story) -> None:
    story.fetch(story.publish())
    notice = story.publish()
    change_value(delta_file(notice))
    change_value(Path(notice.uri.removeprefix("file://")))
    with pytest.raises(WeightsError, match=f"notice says {notice.digest}"):
        story.fetcher.fetch(asked(notice))
    assert unnamed_files() == 0
    assert how(story.fetch(story.publish())).transport == "file", "what it has now is of no version, so it syncs fully"


def test_a_run_that_was_moved_has_its_deltas_where_its_weights_are(story: Story, tmp_path: Path) -> None:
    store = WeightStore("run-1", "file", folder=tmp_path / "before", delta="on")
    story.store = store
    first, second = story.publish(), None
    (tmp_path / "before").rename(tmp_path / "shared")
    story.fetch(first)
    (tmp_path / "shared").rename(tmp_path / "before")
    second = story.publish()
    (tmp_path / "before").rename(tmp_path / "shared")
    assert how(story.fetch(second)).transport == "delta"


def test_a_new_trainer_publishes_no_delta_first(story: Story, tmp_path: Path) -> None:
    story.fetch(story.publish())
    story.store = WeightStore("run-1", "file", folder=tmp_path / "shared", delta="on")
    assert story.publish().delta is None
    assert story.publish().delta is not None


def test_a_base_whose_file_somebody_removed_is_not_used(story: Story) -> None:
    Path(story.publish().uri.removeprefix("file://")).unlink()
    assert story.publish().delta is None


def test_a_delta_lies_as_long_as_its_weights(story: Story) -> None:
    story.publish()
    second = story.publish()
    third = story.store.publish(story.weights, 2, 0, 1)
    story.store.retire({second.uri, third.uri})
    assert delta_file(second).is_file()
    story.store.retire({third.uri})
    assert not delta_file(second).exists()
    assert delta_file(third).is_file()
    story.store.purge()
    assert not delta_file(third).exists()


def test_weights_that_all_changed_have_a_delta_no_larger_than_themselves_or_none(story: Story) -> None:
    story.publish()
    story.weights = {name: -tensor - 1 for name, tensor in story.weights.items()}
    notice = story.publish()
    assert notice.delta is None or notice.delta.num_bytes <= notice.num_bytes


@pytest.mark.parametrize(("share", "published"), [(0.01, True), (0.9, False)])
def test_auto_publishes_a_delta_to_a_shared_folder_if_it_is_worth_it(tmp_path: Path, share: float, published: bool) -> None:
    store = WeightStore("run-1", "file", folder=tmp_path, delta="auto")
    weights = {"w": torch.zeros(10_000)}
    store.publish(weights, 0, 0, 1)
    changed = {"w": torch.where(torch.arange(10_000) < share * 10_000, 1.0, 0.0)}
    assert (store.publish(changed, 1, 0, 1).delta is not None) == published


def test_auto_publishes_none_through_shared_memory_where_replicas_map_the_weights_themselves(tmp_path: Path) -> None:
    store = WeightStore("run-1", "shm", shm_root=tmp_path, delta="auto")
    store.publish({"w": torch.zeros(10_000)}, 0, 0, 1)
    assert store.publish({"w": torch.zeros(10_000)}, 1, 0, 1).delta is None


def test_without_deltas_a_replica_keeps_no_copy(tmp_path: Path) -> None:
    story = Story(tmp_path, WeightStore("run-1", "file", folder=tmp_path / "shared"), WeightFetcher(tmp_path / "shared", "off"))
    notice = story.publish()
    assert story.fetch(notice).weights.path == Path(notice.uri.removeprefix("file://"))
    assert unnamed_files() == 0
