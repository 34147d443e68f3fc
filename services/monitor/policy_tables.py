"""Who decided, and what shadows would have done, as tables for people, 80 columns wide: of what `policy_numbers` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rich.table import Table
from rich.text import Text

from services.monitor.shadows import Comparison

Row = Mapping[str, object]
MOST_ROWS = 12
"""Rows of a table; of more, the first and the last ones."""
MOST_DIFFERENCES = 5
"""Newest boundaries that are listed of each shadow."""


def rows_of(numbers: Mapping[str, object], name: str) -> Sequence[Row]:
    """One of the lists in them."""
    return cast("Sequence[Row]", numbers[name])


def seconds_words(saved_s: object) -> str:
    """What an estimate says, in words."""
    if not isinstance(saved_s, int | float):
        return "seconds unknown"
    if abs(saved_s) < 0.005:
        return "nothing saved"
    return f"{saved_s:.2f} s saved" if saved_s > 0 else f"{-saved_s:.2f} s lost"


def shadow_tables(numbers: Mapping[str, object]) -> list[Table]:
    """What shadows would have done, if there are any; and where they differed, if they did."""
    differences = differences_table(numbers)
    found = [_comparisons_table(numbers)] if numbers["shadow_comparisons"] else []
    return found if differences is None else [*found, differences]


def policies_table(numbers: Mapping[str, object]) -> Table:
    """Who decided from where on."""
    table = _table("policies", "decides", "because of", "entries", "boundary")
    rows = rows_of(numbers, "policies")
    for row in _ends(rows):
        if row is None:
            table.add_row("…", f"{len(rows) - MOST_ROWS} more")
            continue
        until = "on" if row["until"] is None else f"to {row['until']}"
        because = "the plan" if row["because"] == "plan" else f"{row['because']}, entry {row['request']}"
        restarts = f", restarts: {row['restarts']}" if row["restarts"] else ""
        table.add_row(str(row["words"]), f"{because}{restarts}", f"{row['position']} {until}", str(row["first_boundary"]))
    return table


def _comparisons_table(numbers: Mapping[str, object]) -> Table:
    """Each shadow against each active policy that it was compared with, the newest ones."""
    table = _table("shadows", "shadow", "boundaries")
    rows = rows_of(numbers, "shadow_comparisons")
    by_shadow: dict[tuple[object, object], list[Row]] = {}
    for row in rows[-MOST_ROWS:]:
        by_shadow.setdefault((row["label"], row["shadow"]), []).append(row)
    for (label, words), its_rows in by_shadow.items():
        table.add_row(f"{label}: {words}", "")
        for row in its_rows:
            table.add_row(f"  against {row['against']}", f"{row['differ']} of {row['boundaries']} differ{_estimate(row)}")
    if len(rows) > MOST_ROWS:
        table.add_row("…", f"{len(rows) - MOST_ROWS} more")
    table.caption = _caption(numbers)
    return table


def differences_table(numbers: Mapping[str, object]) -> Table | None:
    """The newest boundaries at which shadows that watch now would have answered otherwise; None: there are none."""
    table = _table("where they differed last", "shadow", "boundary", "decided", "shadow said", "estimate")
    for row in rows_of(numbers, "shadow_comparisons"):
        if row["is_current"]:
            for difference in rows_of(row, "newest_differences")[-MOST_DIFFERENCES:]:
                active, shadow = cast("Row", difference["active"]), cast("Row", difference["shadow"])
                worth = seconds_words(difference["saved_seconds"]) if difference["unknown"] is None else f"unknown: {difference['unknown']}"
                table.add_row(str(row["label"]), str(difference["boundary"]), str(active["words"]), str(shadow["words"]), worth)
    return table if table.row_count else None


def comparison_line(comparison: Comparison) -> Text:
    """One comparison in a few words."""
    text = Text(f"{comparison.differ} of {comparison.compared} differ", no_wrap=True, overflow="ellipsis")
    saved_s = comparison.saved_or_unknown_s
    if not comparison.differ:
        return text
    if saved_s is None:
        return text.append(", seconds unknown", "dim")
    return text.append(f", would have {'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.1f} s", "cyan")


def was_changed(numbers: Mapping[str, object]) -> bool:
    """More than the plan's policy had a part in the run, or was to have."""
    return len(rows_of(numbers, "policies")) > 1 or bool(rows_of(numbers, "shadows")) or bool(rows_of(numbers, "policy_requests_refused"))


def _estimate(row: Row) -> str:
    """The sum, and of how many of the boundaries that differ it is; the running cycle has no estimate yet, which needs no word."""
    differ, estimated = cast("int", row["differ"]), cast("int", row["estimated"])
    if not differ:
        return ""
    some = f" (of {estimated})" if estimated and differ - estimated > 1 else ""
    return f", {seconds_words(row['saved_seconds'])}{some}"


def _caption(numbers: Mapping[str, object]) -> Text:
    error = numbers["shadow_model_error_seconds"]
    off = f"; of cycles as they were it is {error:.2f} s off" if isinstance(error, float) else ""
    return Text(f"estimated by a model of each cycle that differs{off}", "dim")


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title=title, title_justify="left", title_style="bold")
    table.caption_justify = "left"
    for name in columns:
        table.add_column(name, justify="right" if name == "boundary" else "left", overflow="fold")
    return table


def _ends(rows: Sequence[Row]) -> list[Row | None]:
    """The first and the last rows, and None for those in between."""
    half = MOST_ROWS // 2
    return list(rows) if len(rows) <= MOST_ROWS else [*rows[:half], None, *rows[-half:]]
