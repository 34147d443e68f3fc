"""`python -m tests.simulation --seeds N [--first S] [--nodes] [--trace]`: simulate seeds S .. S+N-1; stops at the first that fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from random import Random

from rich.progress import track

from bus.events import RunEnded
from tests.simulation.check import run_on_nodes, run_seed
from tests.simulation.nodes import draw_losses
from tests.simulation.world import World


def main() -> int:
    """Exit status 1 when a seed fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", action="store_true", help="on a cluster that loses machines")
    parser.add_argument("--trace", action="store_true", help="print the log of a failing seed")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    ends: Counter[str] = Counter()
    entries = crashes = nodes = 0
    began = time.monotonic()
    for seed in track(range(options.first, options.first + options.seeds), "simulating", disable=not sys.stderr.isatty()):
        try:
            world = run_on_nodes(seed) if options.nodes else run_seed(seed)
        except Exception:
            again = f"--first {seed} --seeds 1 {'--nodes ' if options.nodes else ''}--trace"
            print(f"seed {seed} fails; rerun with: python -m tests.simulation {again}", file=sys.stderr)
            if options.trace:
                trace(World(seed, losses=draw_losses(Random(f"losses of {seed}")) if options.nodes else None))
            raise
        ends.update(entry.event.reason for entry in world.store.entries[-24:] if isinstance(entry.event, RunEnded))
        entries += len(world.store.entries)
        crashes += world.crashes
        nodes += world.nodes.lost
    seconds = time.monotonic() - began
    print(
        f"{options.seeds} seeds, {entries} entries, {crashes} crashes, {nodes} machines lost in {seconds:.0f} s; runs ended: {dict(ends)}"
    )
    return 0


def trace(world: World) -> None:
    """Prints the log of a world, as far as it got."""
    print(world.plan, world.faults, world.nodes.losses, sep="\n")
    try:
        world.run()
    except AssertionError as error:
        print("stopped:", error)
    for entry in world.store.entries:
        print(
            entry.position, f"{entry.source}/{entry.epoch}", "derived" if entry.derived else "fact", f"<-{entry.cause}", repr(entry.event)
        )


if __name__ == "__main__":
    sys.exit(main())
