"""Which checkpoints a restart may need, and from which of them on batches are kept for the redo.

… ─ c ─ c ─ c ─ newest published version ─ c ─ c ─ c         KEPT_CHECKPOINTS on each side of it, at most
    └──────┴── as old as the published weights, which      └── later in the cycle, where an operator asked for one:
               must be made again when they are lost            the newest state
"""

from __future__ import annotations

from bus.events import CheckpointSaved, Event, StepDone, WeightsPublished

KEPT_CHECKPOINTS = 3
"""So many, because one or two may turn out to be torn."""
KINDS = tuple(event.kind for event in (CheckpointSaved, StepDone, WeightsPublished))
"""All that the fold looks at."""


class KeptCheckpoints:
    """Fold; feed it every event of `KINDS` once, in order."""

    def __init__(self) -> None:
        self.saved: list[CheckpointSaved] = []
        """In order."""
        self._steps_done = 0
        self._version = -1
        self._published_after = 0
        """Step that the newest version was first published after."""

    def apply(self, event: Event) -> None:
        """Takes in one event."""
        match event:
            case StepDone():
                self._steps_done = max(self._steps_done, event.step)
            case WeightsPublished() if event.version > self._version:
                self._version, self._published_after = event.version, self._steps_done
                self._forget()
            case CheckpointSaved():
                # One that was asked for twice after a step lies in one folder, and is there once.
                self.saved = [*(saved for saved in self.saved if saved.uri != event.uri), event]
                self._forget()
            case _:
                pass

    @property
    def oldest(self) -> CheckpointSaved | None:
        """No redo begins before this one; None: it may begin at the initial weights, so all batches are needed."""
        return self.saved[0] if len(self._published) == KEPT_CHECKPOINTS else None

    @property
    def _published(self) -> list[CheckpointSaved]:
        return [saved for saved in self.saved if saved.step <= self._published_after]

    def _forget(self) -> None:
        later = [saved for saved in self.saved if saved.step > self._published_after]
        self.saved = self._published[-KEPT_CHECKPOINTS:] + later[-KEPT_CHECKPOINTS:]
