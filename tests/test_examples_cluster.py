"""The examples for two and for eight machines: they load, and fit clusters of such machines and no smaller ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.config import RunConfig
from services.engines.vllm_arguments import engine_arguments
from services.launcher.on_ray.placement import place
from services.launcher.on_ray.room import missing
from services.launcher.on_ray.words import placed_words
from services.plan import plan_run
from services.planned import config_of, engine_config
from tests.services.data.folders import make_folder
from tests.services.launcher.on_ray.clusters import cluster_of, node, nodes
from tests.test_examples_qwen import data, example

__all__ = ["data"]  # a fixture

FOLDER = Path(__file__).parent.parent / "examples" / "cluster"
TWO, EIGHT = FOLDER / "2-nodes.yaml", FOLDER / "8-nodes.yaml"
CPUS_OF_A_NODE = 128


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", config={"torch_dtype": "bfloat16", "max_position_embeddings": 32768, "num_attention_heads": 40})


@pytest.mark.parametrize(("path", "number", "held", "gpus_of_a_replica"), [(TWO, 2, 0, 1), (EIGHT, 8, 4, 4)])
def test_the_examples_fill_clusters_of_so_many_machines(
    path: Path, number: int, held: int, gpus_of_a_replica: int, model: Path, data: dict[str, str]
) -> None:
    config, there = example(path, model, data), nodes(number, 8, CPUS_OF_A_NODE)
    plan = plan_run(config, "r1", cluster_of(there))
    resolved = config_of(plan)
    placement = place(plan, resolved, there)
    assert missing(placement, there) is None
    assert sum(bundle.resources["GPU"] for bundle in placement.bundles) == 8 * number
    assert sum(bundle.held for bundle in placement.bundles) == held
    assert len(placement.ranks) == config.actor.ranks
    for name in (*plan.standalone, *plan.hybrid):
        seat = placement.seats[f"replica:{name}"]
        assert len(seat.device.split(",")) == gpus_of_a_replica
        arguments = engine_arguments(engine_config(resolved, plan), model, seat.device)
        assert (arguments["dtype"], arguments["max_num_seqs"]) == ("bfloat16", 256)
    assert placed_words(placement, there)


def test_hybrid_replicas_of_the_larger_one_are_with_the_ranks_whose_gpus_they_share(model: Path, data: dict[str, str]) -> None:
    there = nodes(8)
    config = example(EIGHT, model, data)
    placement = place(plan_run(config, "r1", cluster_of(there)), config, there)
    for number in range(4):
        bundle = placement.seats[f"replica:h{number}"].bundle
        assert [rank.bundle for rank in placement.ranks[4 * number : 4 * number + 4]] == [bundle] * 4


@pytest.mark.parametrize(("path", "number"), [(TWO, 2), (EIGHT, 8)])
def test_a_machine_less_is_too_few(path: Path, number: int, model: Path, data: dict[str, str]) -> None:
    config = example(path, model, data)
    with pytest.raises(ConfigError, match=f"that takes {8 * number} GPUs, the cluster of {number - 1} node"):
        plan_run(config, "r1", cluster_of(nodes(number - 1)))


@pytest.mark.parametrize(("cpus", "words"), [(16, "the run needs {} CPU"), (CPUS_OF_A_NODE, "")])
def test_cpus_must_suffice_too(cpus: int, words: str, model: Path, data: dict[str, str]) -> None:
    config: RunConfig = example(TWO, model, data)
    there = [node(0, 8, cpus), node(1, 8, cpus)]
    found = missing(place(plan_run(config, "r1", cluster_of(there)), config, there), there)
    needed = config.actor.ranks * config.cluster.cpus.rank + config.replicas.standalone * config.cluster.cpus.replica
    assert (found.words if found else "").startswith(words.format(f"{needed:g}"))
