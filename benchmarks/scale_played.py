"""The replicas, or the services beside them but for the archiver: a process plays all of them, each with its connections and rhythm.

What a thousand machines compute is left out, and what their clients would compute of each entry, so that all of it fits into half a core.
`python -m benchmarks.scale_played replicas|services LOAD PORT LOG_ID`. Each second a line: when, and by how many seconds a timer was late
at most.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.scale_load import Load, load_of
from benchmarks.scale_replicas import Replica, World
from benchmarks.scale_services import Rollouter, Service, Trainer
from benchmarks.scale_wire import Loop

BEGINS_EACH_S = 0.001
"""A replica."""
SAYS_EACH_S = 1.0


def main(arguments: Sequence[str]) -> None:
    who, load, port, log_id = arguments[0], load_of(arguments[1]), int(arguments[2]), arguments[3]
    # Tens of thousands of answers are under way all the time, and none of them in a circle.
    gc.disable()
    if who == "replicas":
        play_replicas(load, port, log_id)
    else:
        play_services(load, port, log_id)


def play_replicas(load: Load, port: int, log_id: str) -> None:
    world = World(load, port, log_id, seed=1)
    for number, name in enumerate(load.names):
        world.loop.after(BEGINS_EACH_S * number, Replica(world, name).start)
    run(world.loop, lambda: world.ended < load.replicas)


def play_services(load: Load, port: int, log_id: str) -> None:
    loop = Loop()
    place = (loop, port, log_id)
    services = [Rollouter(*place, load), Trainer(*place, load), Service(*place, "controller"), Service(*place, "policy")]
    for service in services:
        service.start()
    run(loop, lambda: not all(service.ended for service in services))


def run(loop: Loop, goes_on: Callable[[], bool]) -> None:
    def say() -> None:
        print(f"{time.monotonic():.3f} {loop.lag_s:.4f}", flush=True)
        loop.lag_s = 0.0
        loop.after(SAYS_EACH_S, say)

    loop.after(SAYS_EACH_S, say)
    loop.run(goes_on)


if __name__ == "__main__":
    main(sys.argv[1:])
