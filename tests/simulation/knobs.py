"""The operator who turns knobs on the live run: any setting that can change, at any time, also to values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from bus.entry import Entry
from bus.events import BoundaryOpened, Deadlines, SettingChanged, StepDone, Value
from bus.settings import DEADLINES

VALUES: Mapping[str, Sequence[Value]] = {
    "staleness_threshold": (0.0, 0.25, 0.5, 1.0, 2.0, -1.0),
    "max_version_lag": (None, 0, 1, 2, -1),
    "on_version_lag": ("drop", "wait"),
    "max_logprob_diff": (0.0, 0.001, 0.05, -1.0),
    "checkpoint_every_versions": (1, 2, 3),
    "on_redo_diverged": ("stop", "republish"),
    "use_dynamic_resource_scheduling": (True, False),
    "enable_rebalance": (True, False),
    "max_lent_s": (1.0, 600.0),
    "partial_rollout": (True, False),
    "max_attempts": (1, 2, 3),
    "max_filtered_samples_in_a_row": (8, 1024),
    "max_failed_samples_in_a_row": (8, 16),
    "eval_every_versions": (0, 1, 2),
    "eval_n": (1, 2, 3),
    "eval_timeout_s": (1.0, 300.0),
    "filter_groups": (True, False),
    "reward_timeout_s": (1.0, 30.0),
    "memory_budget": (1 << 20,),
    "memory_pause_at": (0.5, 0.9),
    "memory_resume_at": (0.1, 0.4),
    **{DEADLINES + name: (1.0, 60.0, 0.0) for name in Deadlines.model_fields},
}
"""Name -> values to choose from."""
_OFTEN = (
    "staleness_threshold", "max_version_lag", "on_version_lag", "use_dynamic_resource_scheduling", "enable_rebalance", "partial_rollout",
    "eval_every_versions",
)  # fmt: skip
MAX_TURNS = 8
"""In one run."""


class Operator:
    """Has randomness of its own, so that the rest of a seed stays as it is without him."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"operator {seed}")
        self._left = MAX_TURNS if self._random.random() < 0.5 else 0
        self._chance = self._random.choice((0.01, 0.03, 0.1))
        self._read = 0

    def turns(self) -> list[SettingChanged]:
        """What is said in one append at this tick; mostly nothing."""
        if not self._left or self._random.random() >= self._chance:
            return []
        self._left -= 1
        names = self._random.sample(_OFTEN if self._random.random() < 0.6 else tuple(VALUES), self._random.randint(1, 3))
        return [SettingChanged(name=name, value=self._random.choice(VALUES[name])) for name in names]

    def due(self, entries: Sequence[Entry], set_after: Mapping[int, Mapping[str, Value]]) -> list[SettingChanged]:
        """What a test wants changed after steps that have been done since the last call."""
        if not set_after:
            return []
        new, self._read = entries[self._read :], len(entries)
        steps = [
            0 if isinstance(entry.event, BoundaryOpened) else entry.event.step
            for entry in new
            if isinstance(entry.event, BoundaryOpened | StepDone)
        ]
        return [SettingChanged(name=name, value=value) for step in steps for name, value in set_after.get(step, {}).items()]
