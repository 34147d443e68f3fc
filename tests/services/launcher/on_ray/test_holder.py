"""Who holds the GPUs of a bundle: it is one actor at a time, on the node that the bundle is on now."""

from __future__ import annotations

from services.launcher.on_ray.holder import Holder
from services.launcher.on_ray.orders import Where
from services.launcher.on_ray.remote import Actor, Gone, Said, Then


class Held:
    """An actor that answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Then]] = []
        self.discarded = 0

    def call(self, method: str, then: Then, *arguments: str) -> None:
        self.calls.append((method, then))

    def discard(self) -> None:
        self.discarded += 1


def where(node: str) -> Where:
    return Where(node=node, host="h", address="10.0.0.1", gpus=("0", "1"))


def test_when_its_bundle_is_on_another_node_the_first_actor_goes_and_only_those_who_ask_then_are_answered() -> None:
    actors: list[Held] = []

    def make() -> Actor:
        actors.append(Held())
        return actors[-1]

    heard: list[tuple[str, Where]] = []
    holder = Holder(make, lambda seconds, action: None)
    holder.ask(lambda held: heard.append(("first", held)))
    holder.leave()
    assert actors[0].discarded == 1
    holder.ask(lambda held: heard.append(("second", held)))
    actors[0].calls[0][1](Said(where("a").model_dump_json()))
    actors[0].calls[0][1](Gone("it was discarded"))
    actors[1].calls[0][1](Said(where("b").model_dump_json()))
    assert heard == [("second", where("b"))]
    assert len(actors) == 2, "that the first is gone is no news"
    holder.close()
    assert actors[1].discarded == 1
