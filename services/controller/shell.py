"""The controller as a process: it decides, watches its deadlines and, where no supervisor does, who is alive."""

from __future__ import annotations

from services.context import ServiceContext
from services.controller.core import ControllerCore
from services.controller.loss import LossWatch
from services.shell import Idle, Shell


def main(context: ServiceContext) -> None:
    """Runs until the run has ended."""
    core = ControllerCore()
    Shell(context, core, Idle() if context.supervised else LossWatch(context, core)).run()
