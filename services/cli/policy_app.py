"""The commands `swingshift policy …` and their options. Nothing else is imported before one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import RUNS, Label, Named, Patience, PolicyName, PolicySettings, Redis, Runs

PATIENCE_S = 120.0


def add_policy(app: typer.Typer) -> None:
    """Adds the group."""
    policy = typer.Typer(help="Policies: when to swing.", no_args_is_help=True)
    app.add_typer(policy, name="policy")

    @policy.callback()
    def group() -> None:
        """Policies: when to swing. In a run, one decides; any number may watch as shadows."""

    @policy.command()
    def check(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded decisions, in JSON.")],
        by: Annotated[
            Path | None,
            typer.Option(metavar="POLICIES.py", help="A file written for verl, with a policy under each name in FILE; unset: ours."),
        ] = None,
    ) -> None:
        """Compare recorded decisions with what the policies decide here. Exit status 1 names the first difference."""
        from services.cli.policy import check_command

        check_command(file, by)

    @policy.command("test")
    def try_out(
        name: PolicyName,
        settings: PolicySettings = [],  # noqa: B006
        limit_s: Annotated[float, typer.Option("--limit-s", min=1, help="Longest time for one run or one check of the test.")] = 30.0,
    ) -> None:
        """Try a policy on runs made up for it: is it sound, deterministic, quick, restartable? Exit status 1: it is not, and why."""
        from services.cli.policy_test import policy_test_command

        policy_test_command(name, settings, limit_s)

    _add_changes(policy)
    _add_shadows(policy)

    @policy.command()
    def status(
        run: Named,
        redis: Redis = None,
        runs: Runs = RUNS,
        as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all the numbers.")] = False,
    ) -> None:
        """Say who decides in a run since when, who watches, and where they would have decided otherwise, with the seconds that is worth."""
        from services.cli.policy_status import policy_status_command

        policy_status_command(run, redis, runs, as_json=as_json)


def _add_changes(policy: typer.Typer) -> None:
    @policy.command()
    def swap(
        run: Named,
        name: PolicyName,
        settings: PolicySettings = [],  # noqa: B006
        redis: Redis = None,
        runs: Runs = RUNS,
        wait_s: Patience = PATIENCE_S,
    ) -> None:
        """Let another policy decide in a run that goes on.

        Exit status 1: the run refused it, or nothing came of it. 2: a mistake, and the run was not asked.
        """
        from services.cli.policy_change import Place, swap_command

        swap_command(Place(run, redis, runs, wait_s), name, settings)

    @policy.command()
    def rollback(run: Named, redis: Redis = None, runs: Runs = RUNS, wait_s: Patience = PATIENCE_S) -> None:
        """Let the policy decide again that decided before the present one. Twice goes back and forth between the last two."""
        from services.cli.policy_change import Place, rollback_command

        rollback_command(Place(run, redis, runs, wait_s))


def _add_shadows(policy: typer.Typer) -> None:
    @policy.command()
    def shadow(
        run: Named,
        name: PolicyName,
        settings: PolicySettings = [],  # noqa: B006
        label: Annotated[str | None, typer.Option(help="What it is called from now on; unset: its name.")] = None,
        redis: Redis = None,
        runs: Runs = RUNS,
        wait_s: Patience = PATIENCE_S,
    ) -> None:
        """Let a policy watch a run: what it would decide is recorded and changes nothing."""
        from services.cli.policy_change import Place, shadow_command

        shadow_command(Place(run, redis, runs, wait_s), name, settings, label)

    @policy.command()
    def promote(run: Named, label: Label, redis: Redis = None, runs: Runs = RUNS, wait_s: Patience = PATIENCE_S) -> None:
        """Let a shadow decide; it watches no more."""
        from services.cli.policy_change import Place, promote_command

        promote_command(Place(run, redis, runs, wait_s), label)

    @policy.command()
    def detach(run: Named, label: Label, redis: Redis = None, runs: Runs = RUNS, wait_s: Patience = PATIENCE_S) -> None:
        """End a shadow."""
        from services.cli.policy_change import Place, detach_command

        detach_command(Place(run, redis, runs, wait_s), label)
