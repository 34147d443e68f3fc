"""Where services may sit on made-up clusters: what is reserved together, who has which GPU, who may not go where. No Ray is needed."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ConfigError
from services.config import RunConfig
from services.devices import DECIDERS, check_memory, check_parallel, gpus_of, known_services, share_of
from services.launcher.on_ray.placement import Placement, Seat, fractions, place
from services.launcher.on_ray.room import missing
from tests.services.launcher.on_ray.clusters import config, node, nodes, on_gpus, placed, planned


def test_the_trainer_and_its_hybrid_replica_share_a_gpu_by_their_shares_of_its_memory() -> None:
    found = placed(on_gpus(1, 1), nodes(1))
    assert [bundle.services for bundle in found.bundles] == [("trainer", "replica:h0"), ("replica:s0",)]
    assert [dict(bundle.resources) for bundle in found.bundles] == [{"GPU": 1, "CPU": 1.0}] * 2
    assert found.seats["trainer"] == Seat(0, num_cpus=1.0, num_gpus=0.1)
    assert found.seats["replica:h0"] == Seat(0, num_cpus=0.0, num_gpus=0.5)
    assert found.seats["replica:s0"] == Seat(1, num_cpus=1.0, num_gpus=1.0)
    assert [found.seats[name] for name in DECIDERS] == [Seat(None)] * 4
    assert [found.seats[name].device for name in ("trainer", "replica:h0", "replica:s0", "policy")] == ["cuda:0"] * 3 + [""]


def test_each_rank_has_a_bundle_with_the_hybrid_replica_on_its_gpu() -> None:
    found = placed(on_gpus(8, 8, ranks=8), nodes(2))
    assert [bundle.services for bundle in found.bundles[:8]] == [("trainer", f"replica:h{number}") for number in range(8)]
    assert [rank.bundle for rank in found.ranks] == list(range(8))
    assert [found.seats[f"replica:h{number}"].bundle for number in range(8)] == list(range(8))
    assert sorted(found.seats[f"replica:s{number}"].bundle or 0 for number in range(8)) == list(range(8, 16))


def test_hybrid_replicas_on_the_gpus_of_several_ranks_are_in_one_bundle_with_these() -> None:
    """Bundles may come to different nodes; within one, only who holds all GPUs knows which is which."""
    found = placed(on_gpus(0, 2, ranks=4, parts=2), nodes(1))
    assert [bundle.services for bundle in found.bundles] == [("trainer", "trainer", "replica:h0"), ("trainer", "trainer", "replica:h1")]
    assert all(bundle.held and bundle.resources["GPU"] == 2 for bundle in found.bundles)
    assert [(rank.bundle, rank.held, rank.num_gpus, rank.device) for rank in found.ranks] == [
        (0, (0,), 0.0, "cuda:0"), (0, (1,), 0.0, "cuda:0"), (1, (0,), 0.0, "cuda:0"), (1, (1,), 0.0, "cuda:0"),
    ]  # fmt: skip
    hybrid = found.seats["replica:h1"]
    assert (hybrid.bundle, hybrid.held, hybrid.device) == (1, (0, 1), "cuda:0,cuda:1")


def test_hybrid_replicas_that_overlap_bring_all_their_ranks_together() -> None:
    """Three ranks, two replicas of two GPUs each: h1 is on the third and the first."""
    found = placed(on_gpus(0, 2, ranks=3, parts=2, rollout={
        "engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 2}, "gpu_memory_utilization": 0.4,
    }), nodes(1))  # fmt: skip
    assert len(found.bundles) == 1
    assert (found.seats["replica:h0"].held, found.seats["replica:h1"].held) == ((0, 1), (2, 0))


def test_a_standalone_replica_on_several_gpus_takes_them_all_and_they_are_on_one_node() -> None:
    found = placed(on_gpus(3, 0, parts=4), nodes(2))
    assert dict(found.bundles[1].resources) == {"GPU": 4, "CPU": 1.0}
    assert not found.bundles[1].held
    assert (found.seats["replica:s0"].num_gpus, found.seats["replica:s0"].device) == (4.0, "cuda:0,cuda:1,cuda:2,cuda:3")
    assert found.seats["trainer"].num_gpus == 1.0


def test_standalone_replicas_that_were_put_on_one_gpu_share_it() -> None:
    devices = {"trainer": "cuda:0", "replica:s0": "cuda:5", "replica:s1": "cuda:5"}
    rollout = {"engine": "vllm", "standalone_gpu_memory_utilization": 0.45}
    found = placed(on_gpus(2, 0, devices=devices, rollout=rollout), nodes(1))
    assert found.bundles[1].services == ("replica:s0", "replica:s1")
    assert [found.seats[f"replica:s{number}"].num_gpus for number in range(2)] == [0.45, 0.45]


def test_on_cpus_hybrid_replicas_are_with_a_rank_and_take_turns_with_it() -> None:
    found = placed(
        config(replicas={"standalone": 2, "hybrid": 3}, actor={"ranks": 2}, cluster={"cpus": {"rank": 4, "replica": 2}}), nodes(3, 0, 8)
    )
    assert [bundle.services for bundle in found.bundles] == [
        ("trainer", "replica:h0", "replica:h2"), ("trainer", "replica:h1"), ("replica:s0",), ("replica:s1",),
    ]  # fmt: skip
    assert [dict(bundle.resources) for bundle in found.bundles] == [{"CPU": 4.0}, {"CPU": 4.0}, {"CPU": 2.0}, {"CPU": 2.0}]
    assert (found.seats["replica:h0"].num_cpus, found.seats["replica:s0"].num_cpus, found.ranks[1].num_cpus) == (0.0, 2.0, 4.0)


def test_services_are_bound_to_nodes_by_custom_resources() -> None:
    resources = {"trainer": {"fast": 1}, "replica:h0": {"fast": 0.5}, "controller": {"head": 0.1}}
    found = placed(config(cluster={"resources": resources, "cpus": {"other": 0.5}, "strategy": "strict_spread"}), nodes(2, 0))
    assert dict(found.bundles[0].resources) == {"CPU": 1.0, "fast": 1.5}
    assert (dict(found.seats["trainer"].resources), dict(found.seats["replica:h0"].resources)) == ({"fast": 1}, {"fast": 0.5})
    assert (found.seats["controller"].num_cpus, dict(found.seats["controller"].resources)) == (0.5, {"head": 0.1})
    assert found.strategy == "STRICT_SPREAD"


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"replica:s7": {"a": 1}}, "cluster.resources.replica:s7: there is no such service in this run, there are trainer, replica:s0"),
        ({"trainer": {"GPU": 1}}, "cluster.resources.trainer.GPU: that one follows from devices; name custom resources here"),
    ],
)
def test_resources_that_cannot_be_given_are_refused(resources: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        placed(config(cluster={"resources": resources}), nodes(1))


def test_nobody_goes_to_a_node_that_lacks_something() -> None:
    there = [node(0, trainer="no model"), node(1, replica_s0="no engine", replica_h0="no engine"), node(2, controller="no Redis")]
    found = placed(on_gpus(1, 1), there)
    assert found.bundles[0].selector == {"ray.io/node-id": f"!in({there[0].id},{there[1].id})"}
    assert found.bundles[1].selector == {"ray.io/node-id": f"!in({there[1].id})"}
    assert found.seats["controller"].selector == {"ray.io/node-id": f"!in({there[2].id})"}
    assert found.seats["rollouter"].selector == {}


def test_a_service_without_any_node_is_named_with_what_each_lacks() -> None:
    there = [node(number, replica_s0=f"there is no /models/{number}: put it there") for number in range(6)]
    with pytest.raises(ConfigError) as caught:
        placed(on_gpus(1, 1), there)
    assert str(caught.value) == (
        "no node has what replica:s0 needs: node0: there is no /models/0: put it there; node1: there is no /models/1: put it there; "
        "node2: there is no /models/2: put it there; node3: there is no /models/3: put it there; and 2 more nodes"
    )


def test_services_that_share_a_device_need_one_node_that_is_fit_for_both() -> None:
    there = [node(0, trainer="no model"), node(1, replica_h0="no engine")]
    with pytest.raises(
        ConfigError, match="no node has what trainer and replica:h0 need, which must be on one node: node0: no model; node1"
    ):
        placed(on_gpus(0, 1), there)


def test_a_cluster_of_1024_gpus_is_filled() -> None:
    there = nodes(128)
    found = placed(on_gpus(1024 - 64, 16, ranks=64, parts=1), there)
    assert sum(bundle.resources["GPU"] for bundle in found.bundles) == 1024
    assert missing(found, there) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_fractions_of_one_gpu_are_never_nothing_and_never_more_than_it(shares: list[float]) -> None:
    total = math.fsum(shares)
    found = fractions([share / total if total > 1 else share for share in shares])
    assert all(part > 0 for part in found)
    assert round(math.fsum(found), 9) <= 1
    assert all(part == round(part, 4) for part in found)


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunConfig, int, int]:
    """Settings that fit on so many nodes of so many GPUs, if these go side by side."""
    each, parts, ranks = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 12))
    hybrid = draw(st.integers(0, 6)) if parts <= ranks else 0
    standalone = draw(st.integers(0 if hybrid else 1, 6))
    share = 0.9 / max(1, hybrid)
    kwargs = {"tensor_parallel_size": parts} if parts > 1 else {}
    made = on_gpus(
        standalone, hybrid, ranks,
        rollout={"engine": "vllm", "engine_kwargs": kwargs, "gpu_memory_utilization": share},
        trainer={"gpu_memory_utilization": draw(st.sampled_from([0.0, 0.05, 0.1]))},
    )  # fmt: skip
    return made, math.ceil((ranks + parts * standalone) / each) + 1, each


@settings(deadline=None, max_examples=60)
@given(runs())
def test_every_service_has_one_seat_and_no_gpu_is_given_away_twice(run: tuple[RunConfig, int, int]) -> None:
    made, number, each = run
    there = nodes(number, each)
    plan = planned(made, there)
    found = place(plan, made, there)
    assert sorted(found.seats) == sorted(known_services(made))
    assert len(found.ranks) == made.actor.ranks
    assert found.seats["trainer"] == found.ranks[0]
    seats = [*found.ranks, *list(found.seats.values())[1:]]
    check_parallel(made, plan.devices)
    check_memory(made, plan.devices)
    for index, bundle in enumerate(found.bundles):
        here = [seat for seat in seats if seat.bundle == index]
        assert len(here) == len(bundle.services) > 0
        assert math.fsum(seat.num_gpus for seat in here) <= bundle.resources["GPU"] + 1e-9
        assert math.fsum(seat.num_cpus for seat in here) <= bundle.resources["CPU"] + 1e-9
        assert all(number < bundle.resources["GPU"] for seat in here for number in seat.held)
        assert bundle.held == any(seat.held for seat in here)
    assert _planned_sharing(plan.devices, made) == _placed_sharing(found)


def _planned_sharing(devices: dict[str, str], made: RunConfig) -> Counter[frozenset[str]]:
    """Who is on one GPU, for each GPU."""
    on: dict[int, set[str]] = {}
    for number in range(made.actor.ranks):
        for gpu in gpus_of(share_of(devices["trainer"], number, made.actor.ranks)):
            on.setdefault(gpu, set()).add(f"trainer {number}")
    for service, device in devices.items():
        for gpu in gpus_of(device) if service != "trainer" else ():
            on.setdefault(gpu, set()).add(service)
    return Counter(frozenset(names) for names in on.values())


def _placed_sharing(found: Placement) -> Counter[frozenset[str]]:
    """The same, as the seats have it."""
    on: dict[tuple[int, int], set[str]] = {}
    seats = [*((f"trainer {number}", seat) for number, seat in enumerate(found.ranks)), *list(found.seats.items())[1:]]
    for name, seat in seats:
        for gpu in range(math.ceil(seat.num_gpus)) if not seat.held else seat.held:
            assert seat.bundle is not None
            on.setdefault((seat.bundle, gpu), set()).add(name)
    return Counter(frozenset(names) for names in on.values())
