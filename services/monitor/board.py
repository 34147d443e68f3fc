"""What the live view shows, drawn from the folds for a width and a height. Pure: no clock, no terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bus.events import RunPlanned
from policies.swings import Lend
from services.monitor.elapsed import clock_text
from services.monitor.policy_history import Shadow
from services.monitor.policy_tables import comparison_line
from services.monitor.summary import Summary

LEVELS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 9
FEWEST_NOTES = 3
FIXED_LINES = 9
"""Title, five gauges, head of the replicas, two empty lines."""
MOST_SHADOWS = 4
"""Lines for policies that watch; of more, those that came first."""
MOST_AWAITED = 4
"""Replicas that are named while they start; more are counted."""
NUMBERS = ("in flight", "version", "answers")
"""Columns of the replicas."""
STYLES = {
    "generate": "green", "train": "green", "evaluate": "blue", "idle": "yellow", "update": "cyan", "asleep": "dim", "starting": "dim",
    "lost": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Board:
    """Everything a frame is made of. Seconds are None while unknown."""

    summary: Summary
    lend: Lend | None
    notes: Sequence[tuple[float | None, str]]
    """(seconds into the run, text), oldest first."""
    running_s: float | None
    """Since boundary 0 was opened."""
    held_s: float | None
    """Since the devices have the holder that they have."""
    starting_s: float | None = None
    """Since the plan was made, before boundary 0 is opened."""

    def draw(self, width: int, height: int) -> RenderableType:
        """One frame."""
        plan = self.summary.books.plan
        if plan is None:
            return Text("waiting for the first entry of the log")
        shadows = list(self.summary.policies.shadows.values())[:MOST_SHADOWS]
        lines = FIXED_LINES + len(shadows)
        replicas, rows = self._replicas(max(1, height - lines - FEWEST_NOTES - 1))
        notes = max(1, height - lines - rows - 1)
        return Group(
            self._title(plan),
            self._gauges(plan, width, shadows),
            "",
            replicas,
            "",
            *(_cut(_note(seconds, text), width) for seconds, text in list(self.notes)[-notes:]),
        )

    def line(self) -> str:
        """The frame as one plain line."""
        summary, plan = self.summary, self.summary.books.plan
        books, rewards = summary.books, summary.training.rewards
        if plan is None:
            return "waiting for the first entry of the log"
        parts = [
            "starting" if self.running_s is None else clock_text(self.running_s),
            f"step {books.steps_done}/{plan.total_steps}",
            f"reward {recent(rewards):.3f}" if rewards else "reward -",
            f"ready {len(books.ready)}/{plan.required_samples}",
            f"in flight {len(books.in_flight)}",
            f"version {books.version}",
            f"devices {self._holder()[0]}",
            f"swings {sum(swing.outcome == 'done' for swing in summary.swings.all)}",
            f"waited {fsum(summary.training.waits_s):.1f} s",
        ]
        return "  ".join(parts)

    # --- the lines ---------------------------------------------------------------------------------------------------------------

    def _title(self, plan: RunPlanned) -> Text:
        ended = self.summary.ended
        state = f"ended: {ended.reason}" if ended is not None else self._starting() if self.running_s is None else "running"
        since = "" if self.running_s is None else f" {clock_text(self.running_s)}"
        text = Text(no_wrap=True, overflow="ellipsis")
        return (
            text.append(plan.run, "bold")
            .append(f"  {state}{since}", "bold green" if ended is None else "bold")
            .append(f"  policy {self._policy(plan)}  version {max(0, self.summary.books.version)}", "dim")
        )

    def _starting(self) -> str:
        """Nothing else is to be seen while engines start, which takes minutes with some."""
        since = "" if self.starting_s is None else f" {clock_text(self.starting_s)}"
        waiting = [name for name, doing in self.summary.replicas.doing().items() if doing == "starting"]
        shown = ", ".join(waiting) if len(waiting) <= MOST_AWAITED else f"{len(waiting)} replicas"
        return f"starting{since}{shown and f', waiting for {shown}'}"

    def _policy(self, plan: RunPlanned) -> str:
        active = self.summary.policies.active
        return plan.policy if active is None else active.chosen.short

    def _gauges(self, plan: RunPlanned, width: int, shadows: Sequence[Shadow]) -> Table:
        bar = max(10, min(40, width - LABEL_WIDTH - 44))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), collapse_padding=True)
        table.add_column(width=LABEL_WIDTH - 1, style="dim", no_wrap=True)
        table.add_column(width=bar, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        books, rewards = self.summary.books, self.summary.training.rewards
        steps = ProgressBar(total=plan.total_steps, completed=books.steps_done, width=bar)
        table.add_row("steps", steps, self._steps(plan))
        table.add_row("reward", Text(sparkline(rewards, bar), "cyan"), self._reward(rewards))
        table.add_row("samples", self._sample_bar(bar), self._sample_counts(plan))
        holder, style = self._holder()
        table.add_row("devices", Text(holder, style, no_wrap=True, overflow="ellipsis"), self._devices(plan))
        table.add_row("waits", Text(f"{fsum(self.summary.training.waits_s):.1f} s in all"), self._swing_costs())
        for shadow in shadows:
            table.add_row("shadow", Text(shadow.label, no_wrap=True, overflow="ellipsis"), self._shadow(shadow))
        return table

    def _steps(self, plan: RunPlanned) -> str:
        done = self.summary.books.steps_done
        left = ""
        if self.running_s is not None and done and self.summary.ended is None:
            left = f"  about {clock_text(self.running_s / done * (plan.total_steps - done))} left"
        return f"{done} of {plan.total_steps}{left}"

    def _reward(self, rewards: Sequence[float]) -> str:
        if not rewards:
            return "no step yet"
        first = fsum(rewards[: max(1, len(rewards) // 4)]) / max(1, len(rewards) // 4)
        return f"{recent(rewards):.3f} now, {first:.3f} in the first quarter"

    def _sample_bar(self, width: int) -> Text:
        """Shares of the staleness limit: used since the last publication, ready, in flight, room."""
        books = self.summary.books
        text, limit, filled, shown = Text(no_wrap=True), max(1, books.limit), 0, 0
        parts = (books.used_since_publication, "█", "blue"), (len(books.ready), "▓", "green"), (len(books.in_flight), "▒", "yellow")
        for count, sign, style in parts:
            filled += count
            end = min(width, round(filled * width / limit))
            text.append(sign * (end - shown), style)
            shown = max(shown, end)
        return text.append("░" * (width - shown), "dim")

    def _sample_counts(self, plan: RunPlanned) -> Text:
        books = self.summary.books
        dropped = sum(books.dropped.values())
        text = Text(no_wrap=True, overflow="ellipsis").append(f"{len(books.ready)} ready", "green").append(f" of {plan.required_samples}, ")
        text.append(f"{len(books.in_flight)} in flight", "yellow").append(f", limit {books.limit}")
        return text.append(f", {dropped} dropped", "red") if dropped else text

    def _holder(self) -> tuple[str, str]:
        swings = self.summary.swings
        if swings.running is not None:
            return ("being lent" if swings.running.target == "rollout" else "going back"), "magenta"
        if swings.holder == "lent":
            return "lent", "bold magenta"
        return ("training" if self.summary.books.batch is not None else "home"), "green"

    def _devices(self, plan: RunPlanned) -> str:
        swings = self.summary.swings
        since = "" if self.held_s is None else f"for {clock_text(self.held_s)}"
        if swings.running is not None:
            return f"swing {swings.running.swing} ({swings.running.phase}) {since}"
        if swings.holder == "lent" and self.lend is not None:
            return f"{since}, back at {self.lend.give_back_at} ready"
        return since if plan.hybrid else f"{since}, no hybrid replica to lend to"

    def _shadow(self, shadow: Shadow) -> Text:
        """Against who decides now."""
        active = self.summary.policies.active
        found = None if active is None else self.summary.shadows.all.get((shadow.label, shadow.chosen, active.chosen))
        return Text("nothing to compare yet", "dim") if found is None else comparison_line(found)

    def _swing_costs(self) -> str:
        swings, wall = self.summary.swings.all, self.summary.wall_s
        done = [swing for swing in swings if swing.outcome == "done"]
        cost = fsum(swing.seconds or 0.0 for swing in swings)
        share = f", {100 * cost / wall:.1f} % of the time" if wall > 0 and swings else ""
        return f"{len(done)} swing{'' if len(done) == 1 else 's'} cost {cost:.1f} s{share}"

    # --- replicas and notes ------------------------------------------------------------------------------------------------------

    def _replicas(self, rows: int) -> tuple[Table, int]:
        """A table of at most `rows` lines below its head, and how many it has."""
        table = Table(box=None, show_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("replica", "", "does", *NUMBERS):
            table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
        replicas = self.summary.replicas
        doing = replicas.doing()
        names = list(doing) if len(doing) <= rows else list(doing)[: rows - 1]
        for name in names:
            state = replicas.by_name[name]
            slots = f"/{state.slots}" if state.slots else ""
            version = str(state.version) if state.version >= 0 else "-"
            kind = "hybrid" if state.hybrid else "standalone"
            does = Text(doing[name], STYLES[doing[name]])
            table.add_row(name, kind, does, f"{replicas.in_flight(name)}{slots}", version, str(state.answers))
        if len(names) < len(doing):
            rest = Counter(doing[name] for name in doing if name not in names)
            table.add_row("…", f"{len(doing) - len(names)} more", ", ".join(f"{count} {what}" for what, count in rest.items()))
        return table, table.row_count


def recent(rewards: Sequence[float]) -> float:
    """Mean of the newest tenth of the steps, at least four of them."""
    newest = rewards[-max(4, len(rewards) // 10) :]
    return fsum(newest) / len(newest)


def sparkline(numbers: Sequence[float], width: int) -> str:
    """The course of some numbers in at most `width` signs, each the mean of as many of them as it takes."""
    if not numbers:
        return ""
    size = -(-len(numbers) // width)
    means = [fsum(part) / len(part) for part in (numbers[start : start + size] for start in range(0, len(numbers), size))]
    low, span = min(means), max(means) - min(means)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round((value - low) / span * top) if span > 0 else 0] for value in means)


def _note(seconds: float | None, text: str) -> Text:
    return Text(f"{'' if seconds is None else clock_text(seconds):>{LABEL_WIDTH - 2}}  ", "dim").append(text, "default")


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text
