"""The commands and their options. Nothing else is imported before one of them runs, so that `--help` is instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import RUNS, ConfigFile, Named, Redis, Runs, Settings
from services.cli.policy_app import add_policy

Replay = Callable[[Sequence[str]], int]
"""Runs a `swingshift replay` command, which lies above the services; returns its exit status."""


def build_app(replay: Replay) -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(help="Asynchronous RL over one log, lending idle trainer devices.", no_args_is_help=True, add_completion=False)
    _add_run(app, replay)
    _add_services(app)
    _add_server(app)
    _add_looks(app)
    add_policy(app)

    @app.command(
        "replay",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        help="Recorded runs: check them, look at them. See `swingshift replay --help`.",
    )
    def replay_command(context: typer.Context) -> None:
        raise typer.Exit(replay(context.args))

    return app


def _add_run(app: typer.Typer, replay: Replay) -> None:
    @app.command()
    def run(
        config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.yaml]", help="Configuration, such as examples/demo.yaml.")] = None,
        settings: Settings = [],  # noqa: B006
        redis: Redis = None,
        run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Id of the new run; unset: from name and time.")] = None,
        resume: Annotated[str | None, typer.Option(metavar="RUN|DIR", help="Go on with a run that did not end, from its folder.")] = None,
        from_step: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --resume: go back to step N, in a new run.")] = None,
        runs: Runs = RUNS,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
        in_process: Annotated[bool, typer.Option("--in-process", help="All services as threads of this process, for a debugger.")] = False,
        on: Annotated[str, typer.Option("--on", metavar="local|ray", help="Services here, or on a Ray cluster.")] = "local",
        address: Annotated[
            str | None, typer.Option(metavar="HOST:PORT", help="The Ray cluster's head. Also: RAY_ADDRESS. Unset: one that runs here.")
        ] = None,
        verify: Annotated[bool, typer.Option(help="Verify the recording at the end.")] = True,
    ) -> None:
        """Run everything under one supervisor, here or on a Ray cluster: trainer, rollouter, replicas, controller, policy, archiver."""
        from services.cli.run import Where, dry_run_command, resume_command, run_command

        check, where = replay if verify else None, Where(on, address, in_process)
        if (config is None) == (resume is None):
            raise typer.BadParameter("name a configuration to begin a run, or a run to go on with (--resume RUN), and not both")
        if from_step is not None and resume is None:
            raise typer.BadParameter("--from-step goes back in a run: name it with --resume RUN")
        if resume is not None and dry_run:
            raise typer.BadParameter("--dry-run shows what a new run comes to; of one that goes on, `swingshift status RUN` says how it is")
        if runs != RUNS and resume is None:
            raise typer.BadParameter("--runs is where --resume looks for a run; a new one's folder is named by --set folder=DIR")
        if config is None:
            assert resume is not None
            resume_command(resume, runs, settings, redis, from_step, run_id, check, where)
        elif dry_run:
            dry_run_command(config, settings, redis, run_id, where)
        else:
            run_command(config, settings, redis, run_id, check, where)

    @app.command()
    def plan(
        config: ConfigFile,
        run_id: Annotated[str, typer.Option("--run", metavar="ID", help="Id of the new run.")],
        settings: Settings = [],  # noqa: B006
        redis: Redis = None,
        if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing when the server has the run already.")] = False,
    ) -> None:
        """Only make the log, the folder and the initial model of a run whose services are started one by one (`serve`)."""
        from services.cli.plan import plan_command

        plan_command(config, settings, redis, run_id, if_missing=if_missing)


def _add_services(app: typer.Typer) -> None:
    @app.command()
    def serve(
        service: Annotated[str, typer.Argument(help="trainer, rollouter, replica, controller, policy, archiver or monitor")],
        run_id: Annotated[str, typer.Option("--run", metavar="ID", help="Id of a run that was planned (`swingshift plan`).")],
        redis: Redis = None,
        name: Annotated[str | None, typer.Option(help="Which replica of the plan: s0, s1, … or h0, h1, …")] = None,
        runs: Runs = RUNS,
        wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="How long to wait for the run's log to be there.")] = 300.0,
    ) -> None:
        """Run one service against a shared server. Never makes a log: `swingshift plan` and `swingshift run` do."""
        from services.cli.serve import serve_command

        serve_command(service, run_id, redis, name, runs, wait_s)


def _add_server(app: typer.Typer) -> None:
    @app.command()
    def healthy(
        service: Annotated[str, typer.Argument(help="trainer, rollouter, replica, controller, policy or archiver")],
        run_id: Annotated[str, typer.Option("--run", metavar="ID", help="Id of the run.")],
        redis: Redis = None,
        name: Annotated[str | None, typer.Option(help="Which replica: s0, s1, … or h0, h1, …")] = None,
        runs: Runs = RUNS,
    ) -> None:
        """Exit with 0 if a service shows a sign of life, else with 1: for health checks."""
        from services.cli.healthy import healthy_command

        healthy_command(service, run_id, redis, name, runs)

    @app.command()
    def purge(
        run: Named,
        redis: Redis = None,
        runs: Runs = RUNS,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
        force: Annotated[bool, typer.Option("--force", help="Also while its services are alive.")] = False,
    ) -> None:
        """Delete a run's log and payloads from the server; its folder stays."""
        from services.cli.purge import purge_command

        purge_command(run, redis, runs, yes=yes, force=force)

    @app.command()
    def acl(
        folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where passwords and users.acl go; passwords that are there stay.")],
        run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="The one run the users may use; unset: any.")] = None,
    ) -> None:
        """Make an ACL file for a shared server, with a user and a password for each role."""
        from services.cli.acl import acl_command

        acl_command(folder, run_id)


def _add_looks(app: typer.Typer) -> None:
    @app.command()
    def status(run: Named, redis: Redis = None, runs: Runs = RUNS) -> None:
        """Say how a run is doing: steps, samples, who holds the devices, who is alive."""
        from services.cli.status import status_command

        status_command(run, redis, runs)

    @app.command()
    def doctor(
        run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id of a run, or its folder; without: this machine.")] = None,
        redis: Redis = None,
        runs: Runs = RUNS,
    ) -> None:
        """Say what is wrong: with this machine and the server, or with a run, where everybody waits for what. Status 1: something is."""
        from services.cli.doctor import doctor_command

        doctor_command(run, redis, runs)

    @app.command()
    def tail(
        run: Named,
        redis: Redis = None,
        runs: Runs = RUNS,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
        kind: Annotated[list[str], typer.Option(help="Only entries of this kind; may be repeated.")] = [],  # noqa: B006
        number: Annotated[int, typer.Option("--number", "-n", min=0, help="How many of the newest entries.")] = 20,
    ) -> None:
        """Print the newest entries of a run's log."""
        from services.cli.tail import tail_command

        tail_command(run, redis, runs, kind, number, follow=follow)

    @app.command()
    def export(
        run: Named,
        version: Annotated[int | None, typer.Option(min=0, metavar="V", help="Which version; unset: the newest there is.")] = None,
        to: Annotated[Path | None, typer.Option(metavar="DIR", help="The new folder; unset: export-vV in the run's folder.")] = None,
        redis: Redis = None,
        runs: Runs = RUNS,
    ) -> None:
        """Write a version of the weights as a Hugging Face folder, with the model's configuration and tokenizer."""
        from services.cli.export import export_command

        export_command(run, redis, runs, version, to)

    @app.command()
    def record(
        run: Named,
        to: Annotated[Path, typer.Option("-o", "--to", metavar="DIR", help="Folder of the recording; one that was begun there goes on.")],
        redis: Redis = None,
        runs: Runs = RUNS,
    ) -> None:
        """Record a run by hand, besides its own archiver, until it has ended; Ctrl-C ends it before that, and nothing recorded is lost."""
        from services.cli.record import record_command

        record_command(run, redis, runs, to)

    @app.command()
    def stop(run: Named, redis: Redis = None, runs: Runs = RUNS) -> None:
        """Ask a run to end in order: the batch in training is finished and published."""
        from services.cli.stop import stop_command

        stop_command(run, redis, runs)

    @app.command("set")
    def set_settings(
        run: Named,
        assignments: Annotated[
            list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings, values in YAML; none: list those that can change.")
        ] = None,
        redis: Redis = None,
        runs: Runs = RUNS,
    ) -> None:
        """Change settings of a run while it lives; every service honours them from the same entry of the log on."""
        from services.cli.set import set_command

        set_command(run, assignments or [], redis, runs)

    @app.command("runs")
    def list_runs(redis: Redis = None, runs: Runs = RUNS) -> None:
        """List the runs that have a folder here, and those on the server."""
        from services.cli.runs import runs_command

        runs_command(redis, runs)
