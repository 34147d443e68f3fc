"""Short runs of the whole protocol in memory, for the lines that say what must not happen in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from bus.entry import Entry
from bus.events import Event, RunPlanned
from tests.simulation.check import run_world
from tests.simulation.plans import Faults
from tests.simulation.world import World

E = TypeVar("E", bound=Event)


def small_plan(**changes: object) -> RunPlanned:
    """Two samples a step, two steps a cycle; one standalone and one hybrid replica."""
    settings: dict[str, object] = {
        "run": "case", "seed": 1, "total_steps": 6, "required_samples": 2, "trigger_parameter_sync_step": 2, "staleness_threshold": 0.5,
        "rollout_n": 2, "max_prompt_length": 4, "max_response_length": 6, "standalone": ("s0",), "hybrid": ("h0",),
        "max_running_requests": 4, "policy": "default", "policy_params": {},
    }  # fmt: skip
    return RunPlanned.model_validate({**settings, **changes})


def run_plan(plan: RunPlanned, seed: int = 0, faults: Faults | None = None) -> list[Entry]:
    """The log of a run of `plan` to its end, checked: decisions, chain, invariants and books."""
    return run_world(World(seed, plan, faults or Faults())).store.entries


def of_kind(entries: Sequence[Entry], kind: type[E]) -> list[E]:
    """All events of one kind, in order."""
    return [entry.event for entry in entries if isinstance(entry.event, kind)]


def positions(entries: Sequence[Entry], kind: type[Event]) -> list[int]:
    """Where events of one kind stand."""
    return [entry.position for entry in entries if isinstance(entry.event, kind)]
