"""`swingshift policy test`: whether a policy keeps what every policy promises."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console

from services.cli.mistakes import FAILED, mistakes_explained
from services.cli.policy_requests import policy_settings
from services.policy.conformance.finding import without_repetition
from services.policy.conformance.kit import try_policy
from services.policy.source import read_source


def policy_test_command(name: str, settings: Sequence[str], limit_s: float) -> None:
    """Prints what was tried, with ✓ or ✗; exit status 1 when something failed."""
    with mistakes_explained():
        params, source = policy_settings(settings), read_source(name)
        with Console(stderr=True).status(f"policy {name}") as status:
            findings = try_policy(name, params, source, limit_s, lambda doing: status.update(f"policy {name}: {doing}"))
    typer.echo(f"policy {name}")
    for finding in without_repetition(findings):
        for line in finding.lines():
            typer.echo(line)
    failed = sum(not finding.passed for finding in findings)
    if failed:
        typer.echo(f"{failed} of {len(findings)} failed: a run would refuse it, or go wrong with it")
        raise typer.Exit(FAILED)
    left_out = sum(not finding.checked for finding in findings)
    count = f"all {len(findings)}" if not left_out else f"{len(findings) - left_out} of {len(findings)}"
    typer.echo(f"{count} passed{f', {left_out} could not be checked' if left_out else ''}: it may be swapped into a run")
