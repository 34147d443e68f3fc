"""The controller as a process: it only decides, and watches its deadlines."""

from __future__ import annotations

from services.context import ServiceContext
from services.controller.core import ControllerCore
from services.shell import Idle, Shell


def main(context: ServiceContext) -> None:
    """Runs until the run has ended."""
    Shell(context, ControllerCore(), Idle()).run()
