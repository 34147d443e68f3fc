"""`swingshift plan`: the log, the folder and the initial model of a run whose services are started one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from bus.errors import ConfigError, LogMissing
from bus.redis_log import RedisLog
from bus.server import named_server
from services.archiver.origin import record_origin
from services.cli.byte_bar import ByteBar
from services.cli.mistakes import mistakes_explained, show_advice
from services.cli.screen import TerminalScreen
from services.config_file import load_config
from services.context import read_plan
from services.launcher.run import plan_only


def plan_command(file: Path, settings: Sequence[str], redis: str | None, run_id: str, *, if_missing: bool) -> None:
    """Makes the log. `if_missing`: a run that is there already is left as it is, so that a start of all services can be repeated."""
    with mistakes_explained():
        config = load_config(file, settings)
        url = named_server(redis, os.environ, config.redis.url, config.redis.ca_file)
        if url is None:
            raise ConfigError(
                "on which server is the log to be? Name it with --redis URL or REDIS_URL: an embedded one would end with this command"
            )
        if if_missing and _is_there(url, run_id):
            typer.echo(f"run {run_id} is planned already: nothing was changed")
            return
        show_advice(config)
        folder = plan_only(config, run_id, url, TerminalScreen())
        with ByteBar("recording the initial model") as bar:
            record_origin(read_plan(url, run_id, folder), folder, bar.show)
        typer.echo(f"run {run_id} is planned: start its services with `swingshift serve SERVICE --run {run_id}`; its folder is {folder}")


def _is_there(url: str, run_id: str) -> bool:
    try:
        RedisLog.open(url, run_id).close()
    except LogMissing:
        return False
    return True
