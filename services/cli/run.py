"""`swingshift run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bus.errors import ConfigError
from bus.events import RunPlanned
from bus.server import named_server
from services.cli.mistakes import FAILED, INTERRUPTED, mistakes_explained, show_advice
from services.cli.screen import TerminalScreen
from services.config import RunConfig
from services.config_file import load_config
from services.data.planning import plan_data
from services.devices import Machine
from services.launcher.folders import new_run_id, refuse_known_folder
from services.launcher.here import LocalSite, ThreadSite
from services.launcher.interrupts import StopNow
from services.launcher.protocol import Say, Site
from services.launcher.run import RunResult, refuse_known_run, run
from services.local_settings import check_local
from services.plan import plan_run
from services.planned import config_of

Replay = Callable[[Sequence[str]], int]
LOCAL, RAY = "local", "ray"
OPTION = "--on"


@dataclass(frozen=True, slots=True)
class Where:
    """Where the user wants the services to be."""

    on: str = LOCAL
    address: str | None = None
    """Of the Ray cluster."""
    in_process: bool = False

    def check(self) -> None:
        """Raises ConfigError for options that contradict each other."""
        if self.on not in (LOCAL, RAY):
            raise ConfigError(f"{OPTION} is {self.on!r}: it can be {LOCAL}, processes of this machine, or {RAY}, a Ray cluster")
        if self.on == RAY and self.in_process:
            raise ConfigError(f"{OPTION} {RAY} puts services on a cluster and --in-process into this process: leave out one of them")
        if self.on != RAY and self.address is not None:
            raise ConfigError(f"--address {self.address} is that of a Ray cluster: add {OPTION} {RAY}, or leave it out")

    def site(self, say: Say, server: str | None = None) -> Site:
        """`server`: URL of the one that a new run is to be on, if it is named. Raises ConfigError where there is no Ray."""
        self.check()
        if self.on == RAY:
            from services.launcher.on_ray.site import RaySite

            return RaySite(self.address, os.environ, say, server)
        return ThreadSite() if self.in_process else LocalSite()


def run_command(file: Path, settings: Sequence[str], redis: str | None, run_id: str | None, replay: Replay | None, where: Where) -> None:
    """Runs a whole run; exit status 0 when it ended in order and its recording was verified."""
    from services.monitor.summary import summarise

    with mistakes_explained():
        screen = TerminalScreen()
        where.check()
        config = load_config(file, settings)
        show_advice(config)
        new_id = run_id or _new_id(config, file)
        url = _server(config, redis)
        site = where.site(screen.say, url)
        result = _uninterrupted(lambda: run(config, new_id, url, screen, summarise, site))
    _finish(result, replay)


def resume_command(
    named: str,
    runs: Path,
    settings: Sequence[str],
    redis: str | None,
    from_step: int | None,
    run_id: str | None,
    replay: Replay | None,
    where: Where,
) -> None:
    """Goes on with a run, or with a new one that begins with what an old one had up to a step."""
    from services.launcher.from_step import go_back
    from services.launcher.resume import Resuming, find_folder, resume
    from services.monitor.summary import summarise

    with mistakes_explained():
        if run_id is not None and from_step is None:
            raise ConfigError("--run names a new run, and --resume goes on with the one it names: leave out --run, or add --from-step N")
        folder, screen = find_folder(named, runs), TerminalScreen()
        asked = Resuming(redis, settings, where.site(screen.say), screen, summarise, is_new=from_step is not None)
        check_local(settings)
        if from_step is not None:
            new_id = run_id or new_run_id(folder.parent, f"{folder.name}-s{from_step}", time.strftime("%H%M%S"))
            try:
                folder = go_back(folder, from_step, new_id, folder.parent, screen)
            finally:
                screen.end()
        result = _uninterrupted(lambda: resume(folder, asked))
    _finish(result, replay)


def _uninterrupted(action: Callable[[], RunResult]) -> RunResult:
    try:
        return action()
    except StopNow:
        typer.echo("interrupted before the run began", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _finish(result: RunResult, replay: Replay | None) -> None:
    """Says how a run ended, and ends with the exit status for it."""
    from services.monitor.report import print_summary

    if result.summary is not None:
        print_summary(result.summary)
    verified = True
    if replay is not None and result.summary is not None:
        verified = replay(["verify", str(result.folder)]) == 0
    _print_end(result)
    raise typer.Exit(0 if result.outcome.in_order and result.whole and verified else FAILED)


def dry_run_command(file: Path, settings: Sequence[str], redis: str | None, run_id: str | None, where: Where) -> None:
    """Shows the plan, and makes nothing."""
    with mistakes_explained():
        screen = TerminalScreen()
        where.check()
        config = load_config(file, settings)
        new_id = run_id or _new_id(config, file)
        refuse_known_folder(config.folder, new_id)
        # On one machine nobody needs the server for a plan.
        url = _server(config, redis) if where.on == RAY else None
        refuse_known_run(url, new_id)
        with where.site(screen.say, url) as site:
            try:
                data = plan_data(config, screen.reading)
            finally:
                screen.end()
            machine = site.machine(config)
            plan = plan_run(config, new_id, machine, data)
            Console().print(plan_table(plan, machine))
            if placed := site.preview(plan, config):
                Console().print(placement_table(placed))
                # Only of a cluster: what a run on one machine comes to may be looked at where its engine is not.
                site.check(plan, config, screen.say)
        show_advice(config)


def placement_table(placed: Sequence[tuple[str, str]]) -> Table:
    """What the cluster would be asked for."""
    table = Table("on the cluster", "needs", box=None)
    for who, where in placed:
        table.add_row(who, where)
    return table


def plan_table(plan: RunPlanned, machine: Machine) -> Table:
    """The plan for people."""
    config = config_of(plan)
    limit = int(plan.cycle_samples * (1 + plan.staleness_threshold))
    prompts = "as many as are needed" if plan.num_prompts is None else f"{plan.num_prompts}"
    lending = plan.policy if plan.use_dynamic_resource_scheduling and plan.hybrid else "nobody: the devices are never lent by a policy"
    table = Table(box=None, show_header=False)
    for name, value in (
        ("run", plan.run),
        ("folder", str(config.folder / plan.run)),
        ("model", config.model.path),
        ("data", f"{', '.join(config.data.train_files) or config.data.task}, seed {plan.seed}"),
        ("validation", f"{plan.num_validation} prompts{''.join(f', {name}' for name in config.data.val_files)}"),
        ("reward", config.data.reward),
        ("steps", f"{plan.total_steps}, {plan.required_samples} samples each with {plan.rollout_n} answers; {_cycles(plan)}"),
        ("prompts", prompts),
        ("staleness limit", f"{limit} samples = floor({plan.cycle_samples} * (1 + {plan.staleness_threshold:g})) between two publications"),
        ("lengths", f"prompt {plan.max_prompt_length}, answer {plan.max_response_length} tokens"),
        ("replicas", f"standalone {', '.join(plan.standalone) or 'none'}; hybrid {', '.join(plan.hybrid) or 'none'}"),
        ("who decides to lend", lending),
        (f"cores of {machine.name}", ", ".join(map(str, machine.cores)) or "as each node has them"),
        *((f"  {service}", device) for service, device in plan.devices.items()),
        *((f"  {name}", str(value)) for name, value in plan.environment.items()),
    ):
        table.add_row(name, value)
    return table


def _cycles(plan: RunPlanned) -> str:
    return f"a cycle is {plan.trigger_parameter_sync_step} steps = {plan.cycle_samples} samples"


def _new_id(config: RunConfig, file: Path) -> str:
    return new_run_id(config.folder, file.stem, time.strftime("%Y%m%d-%H%M%S"))


def _server(config: RunConfig, redis: str | None) -> str | None:
    return named_server(redis, os.environ, config.redis.url, config.redis.ca_file)


def _print_end(result: RunResult) -> None:
    outcome = result.outcome
    if outcome.leftovers:
        typer.echo(f"had to be ended: {', '.join(outcome.leftovers)}", err=True)
    if not result.whole and not outcome.can_resume:
        typer.echo(
            f"its recording is not whole, the rest is on the server: make room, then `swingshift run --resume {result.folder}` records it",
            err=True,
        )
    detail = f": {outcome.detail}" if outcome.detail else ""
    if outcome.can_resume:
        detail += f"; go on with it: swingshift run --resume {result.folder}"
    words = f"run {result.run} ended: {outcome.reason}{detail}"
    typer.echo(
        f"{words}; its folder is {result.folder}" if outcome.in_order else f"{words}; what the services said is in {result.folder / 'logs'}"
    )
