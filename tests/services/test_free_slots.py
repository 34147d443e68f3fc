"""Free slots that are kept up to date: the same choices as by a look at all replicas."""

from __future__ import annotations

from random import Random

from services.rollouter.free_slots import FreeSlots


def chosen(replicas: dict[str, tuple[int, int]], number: int, avoid: str) -> str | None:
    """By the rule: of those with a free slot, in the order in which they came, the least loaded one from the number-th on, going round."""
    free = [name for name, (requests, slots) in replicas.items() if requests < slots]
    free = [name for name in free if name != avoid] or free
    start = number % len(free) if free else 0
    return min(free[start:] + free[:start], key=lambda name: replicas[name][0] / replicas[name][1], default=None)


def test_whatever_happens_the_choice_is_that_of_a_look_at_all_replicas() -> None:
    for seed in range(20):
        random, slots, replicas = Random(seed), FreeSlots(), dict[str, tuple[int, int]]()
        for number in range(300):
            name = f"r{random.randrange(12)}"
            if random.random() < 0.1 and name in replicas:
                del replicas[name]
                slots.remove(name)
            else:
                replicas[name] = (random.randrange(5), random.choice((0, 2, 3, 4)))
                slots.add(name)
                slots.file(name, *replicas[name])
            avoid = random.choice(("", f"r{random.randrange(12)}"))
            assert slots.choose(number, avoid) == chosen(replicas, number, avoid), f"seed {seed}, number {number}"
            assert slots.count == sum(max(0, most - requests) for requests, most in replicas.values())
            assert [slots.has(name) for name in replicas] == [requests < most for requests, most in replicas.values()]


def test_who_starts_again_keeps_its_place_and_who_was_lost_comes_last() -> None:
    slots = FreeSlots()
    for name in ("a", "b", "c"):
        slots.add(name)
        slots.file(name, 0, 4)
    assert slots.add("a") < slots.place("b")
    slots.remove("b")
    slots.remove("b")
    assert slots.add("b") > slots.place("c")
