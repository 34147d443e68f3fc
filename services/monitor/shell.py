"""The monitor's process: shows a run live until it has ended, then its summary. It tells the measures of each step and holds nothing up."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from bus.events import RunPlanned
from bus.history import History
from services.config import MonitorConfig
from services.context import ServiceContext, plan_of
from services.monitor.reading import follow
from services.monitor.report import print_summary
from services.monitor.reporter import Reporting
from services.monitor.view import LiveView
from services.planned import config_of


def main(context: ServiceContext) -> None:
    """Watches the run that the context is of."""
    watch(context.url, context.run, context.folder)


def watch(url: str, run: str, folder: Path) -> None:
    """Shows a run from its first entry on. `folder`: where its recording is, for entries that the server has forgotten.

    Raises LogMissing, GapError, LogChanged, ServerError.
    """
    with (
        History.open(url, run, folder) as history,
        closing(Reporting(url, run, folder, monitor_config(plan_of(history)))) as reporting,
    ):
        with LiveView() as view:
            for entry in follow(history):
                view.update(entry)
                reporting.take(entry, view.summary)
        print_summary(view.summary.as_dict())


def monitor_config(plan: RunPlanned) -> MonitorConfig:
    """As it was planned; the defaults for a log without a configuration."""
    return config_of(plan).monitor if plan.config else MonitorConfig()
