"""A trainer whose ranks are on different nodes of a cluster: one node is lost, and the run ends with the bits that local ranks have."""

from __future__ import annotations

from pathlib import Path

from bus.events import CheckpointSaved, RedoDiverged, ServiceLost, ServiceStarted, StepDone
from swingshift import replay
from tests.clusters import ThreeNodes, run_on
from tests.test_end_to_end import TRAINING, steps_of

STEPS = 40
"""So many that the run is not over before the loss of a node is felt."""
SETTINGS = (
    "actor.ranks=2", "actor.rank_timeout_s=120", "replicas.standalone=1", "replicas.hybrid=0",
    f"async_training.total_steps={STEPS}", "async_training.on_redo_diverged=stop", "cluster.strategy=strict_spread",
)  # fmt: skip


def test_ranks_on_different_nodes_train_the_bits_of_local_ones_also_after_one_has_lost_its_node(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(TRAINING)
    with run_on(three_nodes, tmp_path / "config.yaml", redis_url, run, tmp_path, *SETTINGS) as process:
        process.wait_for(lambda entry: isinstance(entry.event, StepDone) and entry.event.step == 3)
        where = three_nodes.where(run)
        assert len({where["trainer"], where["trainer-rank1"], where["replica:s0"]}) == 3, where
        lost = next(rank for rank in ("trainer", "trainer-rank1") if where[rank] != "a")
        three_nodes.replace(where[lost])
        for _ in process.follow():
            pass
        assert process.end() == 0, process.account()
    entries = process.recorded()
    events = [entry.event for entry in entries]
    assert steps_of(entries) == list(range(1, STEPS + 1))
    assert sum(entry.source == "trainer" and isinstance(entry.event, ServiceStarted) for entry in entries) == 2
    details = [event.detail for event in events if isinstance(event, ServiceLost) and event.service == "trainer"]
    assert len(details) == 1
    assert "is gone" in details[0], details
    assert not [event for event in events if isinstance(event, RedoDiverged)]
    assert [event for event in events if isinstance(event, CheckpointSaved)]
    # Ranks of one machine do it again, and every digest is the one that was published.
    assert replay(["train", str(tmp_path / run)]) == 0
