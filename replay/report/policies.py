"""Who decided in a run, who watched, and where shadows would have decided otherwise: as the page's tables have it."""

from __future__ import annotations

from dataclasses import dataclass

from replay.report.numbers import seconds_text
from replay.report.timeline import Timeline
from services.monitor.policy_history import Stretch
from services.monitor.policy_tables import seconds_words
from services.monitor.shadows import Comparison


@dataclass(frozen=True, slots=True)
class DecidesRow:
    """One policy, from where to where it decided. `began`: seconds since boundary 0 was opened."""

    policy: str
    began: float
    position: int
    boundary: int
    because: str
    restarts: int


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """One shadow against one policy that decided."""

    label: str
    policy: str
    against: str
    boundaries: int
    differ: int
    lend_instead: int
    keep_instead: int
    worth: str
    """Seconds that it would have saved or lost, in words."""
    is_better: bool | None
    last: tuple[str, ...]
    """The newest boundaries at which it differs, in words."""


@dataclass(frozen=True, slots=True)
class PoliciesPart:
    """All of it."""

    decides: tuple[DecidesRow, ...]
    shadows: tuple[ShadowRow, ...]
    refused: tuple[str, ...]
    model_error: str

    @property
    def is_worth_a_look(self) -> bool:
        """More than the plan's policy had a part in the run."""
        return len(self.decides) > 1 or bool(self.shadows or self.refused)


def policies_part(timeline: Timeline) -> PoliciesPart:
    """Read from the folds that summary.json is made of."""
    summary = timeline.summary
    error = summary.shadows.model_error_s
    return PoliciesPart(
        decides=tuple(_decides(stretch, timeline) for stretch in summary.policies.stretches),
        shadows=tuple(_shadow(comparison) for comparison in summary.shadows.all.values()),
        refused=tuple(f"entry {refusal.request}: {refusal}" for refusal in summary.policies.refusals),
        model_error="" if error is None else seconds_text(error),
    )


def _decides(stretch: Stretch, timeline: Timeline) -> DecidesRow:
    time = timeline.policy_times.get(stretch.position, timeline.opened)
    began = max(0, time - timeline.opened) / 1e9
    because = "the plan" if stretch.because == "plan" else f"{stretch.because}, entry {stretch.request}"
    return DecidesRow(str(stretch.chosen), began, stretch.position, stretch.boundary, because, stretch.restarts)


def _shadow(comparison: Comparison) -> ShadowRow:
    saved_s = comparison.saved_or_unknown_s
    some = f" (of {comparison.estimated})" if comparison.estimated not in (0, comparison.differ) else ""
    return ShadowRow(
        label=comparison.label,
        policy=str(comparison.shadow),
        against=str(comparison.against),
        boundaries=comparison.compared,
        differ=comparison.differ,
        lend_instead=comparison.lend_instead,
        keep_instead=comparison.keep_instead,
        worth=f"{seconds_words(saved_s)}{some}" if comparison.differ else "",
        is_better=None if not saved_s else saved_s > 0,
        last=tuple(
            f"boundary {difference.boundary} (entry {difference.position}): {difference.active}; the shadow: {difference.shadow}; "
            + (seconds_words(difference.saved_s) if not difference.unknown else f"seconds unknown, {difference.unknown}")
            for difference in comparison.newest
        ),
    )
