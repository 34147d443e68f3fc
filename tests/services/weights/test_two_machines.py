"""Weights of a trainer and of replicas that share no memory; trainers that come back where their predecessor's memory is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.events import BatchFormed, CheckpointRequested, CheckpointSaved, RedoDiverged, StepDone, WeightsPublished, WeightsShared
from services.learner.scripted import ScriptedLearner
from services.places import checkpoint_folder
from services.weights.store import load_weights
from tests.services.weights.cluster_of_two import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, redis_url: str, run: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(redis_url, run, tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


class Otherwise(ScriptedLearner):
    """Computes other weights than the machine that was lost."""

    def __init__(self) -> None:
        super().__init__()
        self._digest = hashlib.sha256(b"otherwise").digest()


def of_version(version: int, revision: int = 0) -> Callable[[WeightsPublished], bool]:
    return lambda event: (event.version, event.revision) == (version, revision)


def test_weights_stay_in_memory_until_a_replica_is_elsewhere_which_gets_them_at_once_and_the_next_ones_in_the_folder(
    cluster: Cluster,
) -> None:
    cluster.start("replica:s0", "A")
    with cluster.trainer("A"):
        first = cluster.wait(WeightsPublished)
        assert (first.transport, first.machine) == ("shm", "A")
        cluster.grant(0)
        cluster.sample(1)
        cluster.wait(StepDone)
        assert not cluster.said(WeightsShared)
        cluster.start("replica:s1", "B")
        shared = cluster.wait(WeightsShared)
        assert (shared.version, shared.revision) == (0, 0)
        assert Path(shared.uri.removeprefix("file://")).parent == cluster.shared
        assert load_weights(first.uri, first.digest, cluster.shared).path.parent == cluster.shared
        cluster.sample(1)
        second = cluster.wait(WeightsPublished, of_version(1))
        assert (second.transport, second.machine) == ("file", "")
        cluster.grant(1)
        cluster.sample(2)
        third = cluster.wait(WeightsPublished, of_version(2))
        cluster.wait(CheckpointSaved, lambda event: event.version == 2)
    assert not list(cluster.memory("A").iterdir()), "older ones are retired from both places"
    assert {path.as_uri() for path in cluster.shared.iterdir()} <= {second.uri, third.uri}
    assert len(cluster.said(WeightsShared)) == 1


def test_a_trainer_that_comes_back_elsewhere_makes_lost_weights_again_though_no_step_is_due_and_its_newest_checkpoint_is_too_new(
    cluster: Cluster,
) -> None:
    cluster.start("replica:s0", "A")
    with cluster.trainer("A"):
        cluster.grant(0)
        cluster.sample(2)
        lost = cluster.wait(WeightsPublished, of_version(1))
        cluster.grant(1)
        cluster.sample(1)
        cluster.wait(StepDone, lambda event: event.step == 3)
        cluster.say("operator", CheckpointRequested())
        cluster.wait(CheckpointSaved, lambda event: event.step == 3)
    cluster.lose("A")
    cluster.start("replica:s0", "C")
    with cluster.trainer("B"):
        shared = cluster.wait(WeightsShared)
        assert shared.version == 1
        assert load_weights(lost.uri, lost.digest, cluster.shared).digest == lost.digest
        cluster.sample(1)
        after = cluster.wait(WeightsPublished, of_version(2))
        assert after.machine == "", "the replica is elsewhere"
    assert not cluster.said(RedoDiverged)


@pytest.mark.parametrize("cluster", [{"trigger_parameter_sync_step": 5, "total_steps": 20}], indirect=True)
def test_checkpoints_that_an_operator_asks_for_within_a_cycle_leave_what_lost_weights_are_made_again_from(cluster: Cluster) -> None:
    with cluster.trainer("A"):
        cluster.grant(0)
        cluster.sample(5)
        lost = cluster.wait(WeightsPublished, of_version(1))
        cluster.wait(CheckpointSaved, lambda event: event.step == 5)
        cluster.grant(1)
        for step in (6, 7, 8, 9):
            cluster.sample(1)
            cluster.wait(StepDone, lambda event, step=step: event.step == step)  # type: ignore[misc]
            cluster.say("operator", CheckpointRequested())
            cluster.wait(CheckpointSaved, lambda event, step=step: event.step == step)  # type: ignore[misc]
    cluster.lose("A")
    with cluster.trainer("B"):
        assert cluster.wait(WeightsShared).version == 1
        assert load_weights(lost.uri, lost.digest, cluster.shared).digest == lost.digest
    assert not cluster.said(RedoDiverged)


def test_a_checkpoint_that_is_asked_for_while_a_step_is_in_training_is_of_that_step(cluster: Cluster) -> None:
    with cluster.trainer("A", lambda: ScriptedLearner(seconds_per_step=0.4)):
        cluster.grant(0)
        cluster.sample(1)
        cluster.wait(BatchFormed)
        cluster.say("operator", CheckpointRequested())
        saved = cluster.wait(CheckpointSaved)
        assert not [event for event in cluster.said(CheckpointSaved) if event.step == 0]
    assert saved.step == 1
    assert json.loads((checkpoint_folder(saved.uri, cluster.folder) / "state.json").read_text())["step"] == 1
    with cluster.trainer("A"):
        cluster.sample(1)
        cluster.wait(WeightsPublished, of_version(1))
    assert not cluster.said(RedoDiverged)


def test_the_initial_weights_are_made_again_too(cluster: Cluster) -> None:
    with cluster.trainer("A"):
        lost = cluster.wait(WeightsPublished)
    cluster.lose("A")
    with cluster.trainer("B"):
        assert cluster.wait(WeightsShared).version == 0
        assert load_weights(lost.uri, lost.digest, cluster.shared).digest == lost.digest
    with cluster.trainer("C"):
        cluster.start("replica:s0", "C")
        cluster.grant(0)
        cluster.sample(2)
        cluster.wait(WeightsPublished, of_version(1))
    assert len(cluster.said(WeightsShared)) == 1, "what lies in the folder is there for a third one, too"


@pytest.mark.parametrize("cluster", [{"on_redo_diverged": "republish"}, {"on_redo_diverged": "stop"}], indirect=True)
def test_lost_weights_that_come_out_other_are_never_put_back_under_their_name(cluster: Cluster) -> None:
    with cluster.trainer("A"):
        cluster.grant(0)
        cluster.sample(1)
        cluster.wait(StepDone)
        lost = cluster.wait(WeightsPublished)
    cluster.lose("A")
    with cluster.trainer("B", Otherwise):
        diverged = cluster.wait(RedoDiverged)
        assert (diverged.version, diverged.recorded_digest, diverged.action) == (0, lost.digest, cluster.plan.on_redo_diverged)
        if diverged.action == "republish":
            anew = cluster.wait(WeightsPublished, of_version(0, 1))
            assert (anew.digest, anew.machine) == (diverged.redone_digest, "B")
    assert not cluster.said(WeightsShared)
