"""The command line of a run: `build_app` joins one module a command. What a command needs is imported when it runs."""

from services.cli.app import Replay, build_app

__all__ = ["Replay", "build_app"]
