"""Where the reserved parts of a run are after one had to leave a node: no Ray is needed, its groups are made up here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.launcher.on_ray.bundles import Bundles
from services.launcher.on_ray.placement import Bundle, Placement

GOOD, BAD, WORSE = "good", "bad", "worse"
FIRST = "first"


class Groups:
    """Names of groups stand for them."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, list[Mapping[str, str]]]] = {}
        self.on: dict[str, dict[int, str]] = {FIRST: {0: BAD, 1: GOOD}}

    def make(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Sequence[Mapping[str, str]]) -> object:
        self.made[name] = strategy, list(selectors)
        self.on[name] = {}
        return name

    def nodes(self, group: object) -> Mapping[int, str]:
        assert isinstance(group, str)
        return self.on[group]

    def remove(self, group: object) -> None:
        assert isinstance(group, str)
        del self.made[group]


def bundles_of(groups: Groups, strategy: str = "PACK") -> Bundles:
    parts = (Bundle({"CPU": 1}, ("old",), ("trainer", "replica:h0")), Bundle({"CPU": 1}, (), ("replica:s0",)))
    return Bundles(Placement(parts, strategy, {}, ()), FIRST, "swingshift:r", groups)


def fits(node: str, services: Sequence[str]) -> bool:
    return node == GOOD


def test_a_part_that_leaves_a_node_is_asked_for_anew_without_the_others() -> None:
    groups = Groups()
    bundles = bundles_of(groups)
    assert (bundles.where(0), bundles.barred(0), bundles.services(0)) == ((FIRST, 0), ("old",), ("trainer", "replica:h0"))
    bundles.leave(0, (BAD,))
    assert groups.made == {"swingshift:r:moved-1": ("PACK", [{"ray.io/node-id": "!in(old,bad)"}])}
    assert (bundles.where(0), bundles.where(1)) == (("swingshift:r:moved-1", 0), (FIRST, 1))
    assert bundles.barred(0) == ("old", BAD)
    bundles.leave(0, (BAD, WORSE))
    assert groups.made == {"swingshift:r:moved-2": ("PACK", [{"ray.io/node-id": "!in(old,bad,worse)"}])}
    bundles.close()
    assert groups.made == {}


def test_parts_that_must_be_on_one_node_leave_it_together() -> None:
    groups = Groups()
    bundles = bundles_of(groups, "STRICT_PACK")
    assert bundles.services(1) == ("trainer", "replica:h0", "replica:s0")
    bundles.leave(1, (BAD,))
    assert [strategy for strategy, _ in groups.made.values()] == ["STRICT_PACK"]
    assert (bundles.where(0), bundles.where(1)) == (("swingshift:r:moved-1", 0), ("swingshift:r:moved-1", 1))


def test_parts_that_must_be_apart_stay_apart() -> None:
    groups = Groups()
    bundles = bundles_of(groups, "STRICT_SPREAD")
    bundles.leave(0, (BAD,))
    assert groups.made["swingshift:r:moved-1"] == ("PACK", [{"ray.io/node-id": "!in(old,bad,good)"}])


def test_a_part_goes_back_to_the_first_group_when_ray_has_found_it_a_node_there_and_none_elsewhere() -> None:
    """The node that lacked something is gone, and of the one that came in its place the first group has taken the room."""
    groups = Groups()
    bundles = bundles_of(groups)
    bundles.leave(0, (BAD,))
    assert bundles.found_again(fits) == []
    groups.on[FIRST] = {0: GOOD, 1: GOOD}
    groups.on["swingshift:r:moved-1"] = {0: GOOD}
    assert bundles.found_again(fits) == [], "it has a place"
    groups.on["swingshift:r:moved-1"] = {0: "dead"}
    assert bundles.found_again(fits) == [0]
    assert (bundles.where(0), groups.made) == ((FIRST, 0), {})
    assert bundles.found_again(fits) == []
