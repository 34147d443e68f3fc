"""The command line `swingshift`: joins the commands of the services and of replay."""

from __future__ import annotations

from collections.abc import Sequence

from services.cli import build_app


def replay(arguments: Sequence[str]) -> int:
    """Runs `swingshift replay` with these arguments; returns its exit status."""
    from replay.cli import app

    code: object = app(list(arguments), prog_name="swingshift replay", standalone_mode=False)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Runs the command that the process was called with."""
    build_app(replay)()


if __name__ == "__main__":
    main()
