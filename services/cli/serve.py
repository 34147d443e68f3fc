"""`swingshift serve SERVICE`: one service against a shared server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import typer

from bus.embedded import folder_url
from bus.errors import ConfigError, LogMissing, LogUnavailable, ServerAbsent
from bus.redis_log import RedisLog
from bus.server import named_server
from services.cli.mistakes import mistakes_explained
from services.entry import SERVICES, run_service
from services.launcher.folders import SERVER
from services.launcher.protocol import RunPlace, ServiceSpec
from services.telling import Telling

MONITOR = "monitor"
POLL_S = 0.5
SAY_EVERY_S = 10.0


def serve_command(service: str, run: str, redis: str | None, name: str | None, runs: Path, wait_s: float) -> None:
    """Runs the service until the run has ended; the process's exit status is the service's."""
    with mistakes_explained():
        if service not in (*SERVICES, MONITOR):
            raise ConfigError(f"there is no service {service!r}: name one of {', '.join((*SERVICES, MONITOR))}")
        folder = runs / run
        url = named_server(redis, os.environ) or folder_url(folder / SERVER)
        if url is None:
            raise ConfigError(f"which server has the log of run {run}? Name it with --redis URL or REDIS_URL")
        wait_for_log(url, run, wait_s)
        if service == MONITOR:
            from services.monitor.shell import watch

            watch(url, run, folder)
            return
        code = run_service(RunPlace(url, run, folder), ServiceSpec(service, name or ""), supervised=False)
    raise typer.Exit(code)


def wait_for_log(url: str, run: str, wait_s: float) -> None:
    """Returns once the log is there. Raises LogMissing or ServerAbsent when it is not in time, ServerError when waiting is no use."""
    telling = Telling(0.0, SAY_EVERY_S)
    while True:
        try:
            RedisLog.open(url, run, patience_s=POLL_S).close()
            return
        except (LogMissing, ServerAbsent, LogUnavailable) as error:
            if telling.waited_s >= wait_s:
                raise type(error)(f"{error} (waited {wait_s:g} s; `swingshift plan` makes the log)") from error
            if telling.is_due():
                typer.echo(f"waiting for run {run}, at most {wait_s - telling.waited_s:.0f} s more: {error}", err=True)
        time.sleep(POLL_S)
