"""`swingshift run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bus.events import RunPlanned
from bus.server import named_server
from services.cli.mistakes import FAILED, INTERRUPTED, mistakes_explained, show_advice
from services.cli.screen import TerminalScreen
from services.config import RunConfig
from services.config_file import load_config
from services.data.planning import plan_data
from services.devices import this_machine
from services.launcher.folders import new_run_id
from services.launcher.interrupts import StopNow
from services.launcher.run import RunResult, run
from services.plan import config_of, plan_run


def run_command(
    file: Path,
    settings: Sequence[str],
    redis: str | None,
    run_id: str | None,
    replay: Callable[[Sequence[str]], int] | None,
    *,
    in_process: bool,
) -> None:
    """Runs a whole run; exit status 0 when it ended in order and its recording was verified."""
    from services.monitor.report import print_summary
    from services.monitor.summary import summarise

    with mistakes_explained():
        config = load_config(file, settings)
        show_advice(config)
        run_id = run_id or _new_id(config, file)
        try:
            result = run(config, run_id, _server(config, redis), TerminalScreen(), summarise, in_process=in_process)
        except StopNow:
            typer.echo("interrupted before the run began", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if result.summary is not None:
        print_summary(result.summary)
    verified = True
    if replay is not None and result.summary is not None:
        verified = replay(["verify", str(result.folder)]) == 0
    _print_end(result)
    raise typer.Exit(0 if result.outcome.in_order and verified else FAILED)


def dry_run_command(file: Path, settings: Sequence[str], run_id: str | None) -> None:
    """Shows the plan, and makes nothing."""
    with mistakes_explained():
        config = load_config(file, settings)
        screen = TerminalScreen()
        try:
            data = plan_data(config, screen.reading)
        finally:
            screen.end()
        Console().print(plan_table(plan_run(config, run_id or _new_id(config, file), data=data)))
        show_advice(config)


def plan_table(plan: RunPlanned) -> Table:
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
        ("cores of this machine", ", ".join(map(str, this_machine().cores))),
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
    detail = f": {outcome.detail}" if outcome.detail else ""
    words = f"run {result.run} ended: {outcome.reason}{detail}"
    typer.echo(
        f"{words}; its folder is {result.folder}" if outcome.in_order else f"{words}; what the services said is in {result.folder / 'logs'}"
    )
