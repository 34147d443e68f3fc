"""Ranks as actors of a real cluster, each on a node of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from services.exit_codes import MISTAKEN
from services.launcher.on_ray.launcher import RayLauncher
from services.launcher.on_ray.placement import Placement, Seat
from services.launcher.protocol import RunPlace, ServiceSpec
from tests.clusters import ThreeNodes
from tests.services.launcher.on_ray.connected import connected
from tests.services.launcher.test_contract import end_of, eventually
from tests.services.learner.factories import save_tiny_qwen2

TRAINER = ServiceSpec("trainer", token="t")
SEATS = (Seat(None, resources={"b": 1.0}), Seat(None, resources={"c": 1.0}))
ON_B_AND_C = Placement((), "PACK", {"trainer": SEATS[0]}, SEATS)
SAYS = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"; exec sleep 600'


@pytest.fixture
def cluster(ray_cluster: ThreeNodes) -> Iterator[ThreeNodes]:
    ray_cluster.restore()
    with connected(ray_cluster.address):
        yield ray_cluster


def said(folder: Path, rank: int) -> list[str]:
    """The words of a rank's first line."""
    log = RunPlace("", "", folder).log_file(ServiceSpec("trainer", rank=rank).log_name)
    eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    return log.read_text().split("\n")[0].split()


def test_ranks_find_each_other_and_come_back_together_when_the_node_of_one_is_lost(cluster: ThreeNodes, tmp_path: Path) -> None:
    place = RunPlace("", "gang", tmp_path)
    with RayLauncher(place, ON_B_AND_C, None, lambda _: ["/bin/sh", "-c", SAYS]) as launcher:
        trainer = launcher.spawn(TRAINER)
        first, second = said(tmp_path, 0), said(tmp_path, 1)
        assert (first[:3], second[:3]) == (["0", "2", "0"], ["1", "2", "0"])
        assert first[3:] == second[3:]
        assert trainer.waits_for() == ""
        cluster.remove("c")
        assert end_of(trainer) != 0
        assert "rank 1 of 2: the node " in trainer.how_it_ended()
        again = launcher.spawn(TRAINER)
        eventually(lambda: again.waits_for().endswith("for rank 1 of 2"))
        assert again.poll() is None
        cluster.add("c", resources={"c": 100.0})
        eventually(lambda: again.waits_for() == "")
        again.kill()
        assert end_of(again) != 0


RANK = """
import os, sys
from pathlib import Path
from bus.errors import ConfigError
from services.learner.config import LearnerConfig
from services.learner.sharded.follow import follow_torchrun
from services.learner.sharded.torchrun import Torchrun
torchrun = Torchrun.here()
config = LearnerConfig.model_validate({"model": sys.argv[1], "num_threads": 1, "ranks": 2, "lr": 1e-3 * (1 + torchrun.rank)})
if torchrun.rank:
    sys.exit(follow_torchrun(config, torchrun))
from services.learner.sharded.lead import ShardedLearner
try:
    ShardedLearner(config, total_steps=10)
except ConfigError as error:
    sys.stderr.write(str(error))
    sys.exit(2)
"""


def test_ranks_that_disagree_are_refused_with_what_they_disagree_on(cluster: ThreeNodes, tmp_path: Path) -> None:
    model = save_tiny_qwen2(tmp_path / "model")

    def command(spec: ServiceSpec) -> Sequence[str]:
        return [sys.executable, "-c", RANK, str(model)]

    with RayLauncher(RunPlace("", "gang-2", tmp_path), ON_B_AND_C, None, command) as launcher:
        trainer = launcher.spawn(TRAINER)
        assert end_of(trainer) == MISTAKEN
    told = trainer.how_it_ended()
    assert "rank 1 of 2 (on " in told
    assert "differs from rank 0" in told
    assert "actor.lr is 0.002 there and 0.001 on rank 0" in told
