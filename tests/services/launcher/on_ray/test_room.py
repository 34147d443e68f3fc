"""What a cluster lacks for a placement, told by resource with all numbers. No Ray is needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ConfigError
from services.config import RunConfig
from services.launcher.on_ray.placement import Node, place
from services.launcher.on_ray.room import Missing, amounts_in_words, missing
from tests.services.launcher.on_ray.clusters import config, node, nodes, on_gpus, planned


def lacking(made: RunConfig, there: list[Node], planned_for: list[Node] | None = None) -> Missing:
    found = missing(place(planned(made, planned_for or there), made, there), there)
    assert found is not None
    return found


def test_room_for_all_is_room() -> None:
    made, there = on_gpus(3, 1), nodes(1, 4)
    assert missing(place(planned(made, there), made, there), there) is None


def test_a_cluster_that_is_too_small_is_told_with_who_needs_what() -> None:
    found = lacking(on_gpus(2, 1, ranks=2), nodes(3, 1), planned_for=nodes(1))
    assert found == Missing("the run needs 4 GPU (trainer 2, replica:s0 1, replica:s1 1); the cluster has 3", for_good=True)


def test_what_others_have_is_told_and_may_come_back() -> None:
    there = [node(0, 3, used={"GPU": 1}), node(1, 1)]
    found = lacking(on_gpus(2, 1, ranks=2), there)
    words = "the run needs 4 GPU (trainer 2, replica:s0 1, replica:s1 1); the cluster has 4, 1 of them in use by others"
    assert found == Missing(words, for_good=False)


def test_many_holders_are_told_in_short() -> None:
    found = lacking(on_gpus(20, 0), nodes(1, 8), planned_for=nodes(3))
    assert "(trainer 1, replica:s0 1, replica:s1 1, replica:s2 1, replica:s3 1, replica:s4 1, 15 more 15); the cluster has 8" in found.words


def test_a_part_that_fits_on_no_node_is_told_with_what_the_largest_have() -> None:
    found = lacking(on_gpus(1, 0, parts=4), nodes(6, 2, 8))
    assert found.for_good
    assert found.words == (
        "replica:s0 needs 4 GPU and 1 CPU on one node, and none that it may be on has that: "
        "node0 2 GPU and 8 CPU; node1 2 GPU and 8 CPU; node2 2 GPU and 8 CPU; node3 2 GPU and 8 CPU; 2 more no more than these"
    )


def test_a_hybrid_replica_on_more_gpus_than_a_node_has_is_told_with_the_ranks_beside_it() -> None:
    found = lacking(on_gpus(0, 1, ranks=4, parts=4), nodes(2, 2))
    assert "trainer with replica:h0 needs 4 GPU and 4 CPU on one node" in found.words


def test_only_nodes_that_are_fit_count() -> None:
    there = [node(0, 4, trainer="no model", replica_h0="no model"), node(1, 0)]
    found = lacking(on_gpus(0, 1), there)
    assert found.words == "trainer with replica:h0 needs 1 GPU and 1 CPU on one node, and none that it may be on has that: node1 64 CPU"
    assert found.for_good


def test_free_room_in_too_small_pieces_is_told() -> None:
    there = [node(0, 4, used={"GPU": 1}), node(1, 4, used={"GPU": 1})]
    found = lacking(on_gpus(1, 0, parts=4, replicas={"standalone": 1, "hybrid": 0}), there)
    assert not found.for_good
    assert "replica:s0 needs 4 GPU and 1 CPU on one node, and none that it may be on has free that" in found.words
    crowded = lacking(on_gpus(3, 0, parts=2), [node(0, 3), node(1, 3), node(2, 1)])
    assert not crowded.for_good
    assert "the cluster has enough free in all, but not so that all parts find room: nothing is left for replica:s2" in crowded.words


def test_custom_resources_and_cpus_of_deciders_count() -> None:
    bound = config(cluster={"resources": {"controller": {"head": 1}}})
    assert lacking(bound, nodes(2, 0)).words == "the run needs 1 head (controller 1); the cluster has 0"
    hungry = config(cluster={"cpus": {"other": 2}})
    assert (
        "the run needs 10 CPU (trainer 1, replica:s0 1, rollouter 2, controller 2, policy 2, archiver 2)"
        in lacking(hungry, nodes(2, 0, 4)).words
    )


def test_strict_strategies_are_kept_to() -> None:
    together = config(cluster={"strategy": "strict_pack"})
    assert "trainer with replica:h0, replica:s0 needs 2 CPU on one node" in lacking(together, nodes(2, 0, 1)).words
    apart = config(cluster={"strategy": "strict_spread"}, replicas={"standalone": 2, "hybrid": 1})
    words = "strict_spread wants a node for each of 3 parts (trainer with replica:h0; replica:s0; replica:s1), and there are 2"
    assert words in lacking(apart, nodes(2, 0)).words
    busy = [node(0, 0), node(1, 0), node(2, 0, used={"CPU": 64})]
    assert "each part on a node of its own: nothing is left for replica:s1" in lacking(apart, busy).words


def test_a_plan_that_wants_more_gpus_than_the_cluster_has_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"that takes 9 GPUs, the cluster of 2 nodes has 8; lower replicas.standalone"):
        planned(on_gpus(8, 0), nodes(2, 4))


@pytest.mark.parametrize(
    ("amounts", "words"),
    [({"CPU": 1.0, "GPU": 2}, "2 GPU and 1 CPU"), ({"a": 1, "CPU": 0.5, "GPU": 1}, "1 GPU, 0.5 CPU and 1 a"), ({}, "nothing")],
)
def test_amounts_are_told_with_gpus_first(amounts: dict[str, float], words: str) -> None:
    assert amounts_in_words(amounts) == words


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(0, 6), st.integers(1, 4), st.lists(st.integers(0, 4), min_size=6, max_size=6)
)
def test_what_is_found_to_fit_does_fit(number: int, parts: int, standalone: int, ranks: int, used: list[int]) -> None:
    """If nothing is missing, no sum over all parts is over what is free, and no part is over its node."""
    there = [node(index, 4, used={"GPU": used[index]}) for index in range(number)]
    made = on_gpus(standalone, 1 if parts <= ranks else 0, ranks, parts) if standalone or parts <= ranks else on_gpus(1, 0, ranks, parts)
    found = place(planned(made, nodes(20)), made, there)
    lack = missing(found, there)
    free = sum(each.free["GPU"] for each in there)
    needed = sum(bundle.resources["GPU"] for bundle in found.bundles)
    if lack is None:
        assert needed <= free
        assert all(any(bundle.resources["GPU"] <= each.free["GPU"] for each in there) for bundle in found.bundles)
    else:
        assert lack.words
        assert not lack.for_good or needed > 4 * number or any(bundle.resources["GPU"] > 4 for bundle in found.bundles)
