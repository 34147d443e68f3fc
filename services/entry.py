"""Where the process of one service begins: imports the service, which may take torch along, pins it to its device, and runs it.

    REDIS_URL=URL python -m services.entry SERVICE --run ID [--folder DIR] [--name NAME]

Exit codes: 0 ended in order, 3 fenced by a newer incarnation, 2 the command cannot be followed, 1 anything else, with its traceback.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Protocol, cast

from bus.errors import ConfigError, Fenced, SwingshiftError
from bus.log import WHATEVER
from bus.sources import TRAINER
from services.code import service_code
from services.config import SCRIPTED
from services.context import ServiceContext, make_context, read_plan
from services.devices import cores_of, is_cuda
from services.exit_codes import ENDED, FAILED, FENCED, MISTAKEN
from services.launcher.protocol import RunPlace, ServiceSpec
from services.learner.environment import set_threads
from services.learner.sharded.torchrun import Torchrun
from services.logs import log_to_stderr

logger = logging.getLogger(__name__)

SERVICES = ("trainer", "rollouter", "replica", "controller", "policy", "archiver")
HEAVY = {
    "trainer": "services.learner.hf",
    "replica with embedded": "services.engines.embedded",
    "replica with vllm": "services.engines.vllm_loaded",
}
"""What a service with a model will load: on all cores, before it is pinned, for that takes seconds."""


class ServiceModule(Protocol):
    """What `services.SERVICE.shell` holds."""

    main: Callable[[ServiceContext], None]


def run_service(place: RunPlace, spec: ServiceSpec, *, supervised: bool = True) -> int:
    """Runs one service in this process until the run ends; returns the exit code."""
    log_to_stderr()
    try:
        torchrun = Torchrun.here() if spec.service == TRAINER else None
        spec = replace(spec, rank=torchrun.rank if torchrun is not None else 0)
        context = context_for(place, spec, supervised=supervised)
        set_threads(context.own_device, context.threads)
        return run_main(context) if torchrun is None or torchrun.rank == 0 else run_follower(context, torchrun)
    except ConfigError as error:
        logger.error("cannot start: service=%s run=%s error=%s", spec.service, place.run, error)
        return MISTAKEN
    except SwingshiftError:
        logger.exception("cannot start: service=%s run=%s", spec.service, place.run)
        return FAILED


def context_for(place: RunPlace, spec: ServiceSpec, *, supervised: bool = True, in_process: bool = False) -> ServiceContext:
    """The context of a service of an existing run. Raises ConfigError, LogMissing, ServerError."""
    if spec.service not in SERVICES:
        raise ConfigError(f"there is no service {spec.service!r}: name one of {', '.join(SERVICES)}")
    plan = read_plan(place.url, place.run, place.folder)
    code = code_of(spec.service, plan.policy, plan.policy_source)
    context = make_context(place, spec, plan, code, supervised=supervised, in_process=in_process)
    context.folder.mkdir(parents=True, exist_ok=True)
    return context


def code_of(service: str, policy: str, policy_source: str = "") -> str:
    """Digest of the code that decides in a service of a run with this policy. Raises ConfigError for a policy that there is not."""
    if service != "policy":
        return service_code(service)
    from services.policy.making import policy_code

    return policy_code(policy, policy_source)


def pin(device: str) -> None:
    """Binds all threads of this process, and those they will start, to the cores of its device. Raises ConfigError without them."""
    cores = () if is_cuda(device) else cores_of(device)
    there = os.sched_getaffinity(0)
    missing = [core for core in cores if core not in there]
    if missing:
        raise ConfigError(
            f"the plan puts this service on the cores {device}, here are only {', '.join(map(str, sorted(there)))}: "
            "plan the run with `devices: unpinned`, or name cores that every machine has"
        )
    for thread in Path("/proc/self/task").iterdir() if cores else ():
        os.sched_setaffinity(int(thread.name), cores)


def run_main(context: ServiceContext) -> int:
    """Runs the service's shell; returns the exit code, and logs why it ended."""
    source = context.source
    try:
        module = cast(ServiceModule, importlib.import_module(f"services.{context.service}.shell"))
        context.check_engine()
        what = f"replica with {context.config.rollout.engine}" if context.service == "replica" else context.service
        if what in HEAVY and context.config.model.path != SCRIPTED:
            importlib.import_module(HEAVY[what])
        if not context.in_process:
            pin(context.own_cores)
            _end_on_signals()
        device = context.device or "any"
        planned = f" planned_device={context.planned_device}" if context.placed else ""
        logger.info(
            "service starts: service=%s run=%s pid=%d device=%s%s code=%s", source, context.run, os.getpid(), device, planned, context.code
        )
        module.main(context)
    except _terminated():
        logger.info("service was told to end: service=%s", source)
    except ConfigError as error:
        logger.error("service cannot run: service=%s error=%s", source, error)
        return MISTAKEN
    except Fenced as error:
        logger.warning("service was fenced: service=%s error=%s", source, error)
        return FENCED
    except Exception:
        # The outermost loop of a service: whatever it is, it is recorded, and the exit code tells the supervisor.
        logger.exception("service failed: service=%s", source)
        return FAILED
    logger.info("service ended: service=%s", source)
    return ENDED


def run_follower(context: ServiceContext, torchrun: Torchrun) -> int:
    """Runs a rank of the trainer other than rank 0, which alone speaks to the log; returns the exit code."""
    from services.learner.sharded.follow import follow_torchrun

    pin(context.own_cores)
    return follow_torchrun(context.config.actor, torchrun)


def _terminated() -> type[BaseException]:
    from services.shell import Terminated

    return Terminated


def _end_on_signals() -> None:
    def end(number: int, _frame: FrameType | None) -> None:
        raise _terminated()(f"signal {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main(arguments: list[str]) -> int:
    """The process's command line, written by launchers; people use `swingshift serve`."""
    parser = argparse.ArgumentParser(prog="services.entry")
    parser.add_argument("service")
    parser.add_argument("--run", required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--request", type=int, default=0)
    parser.add_argument("--candidate", action="store_true")
    parser.add_argument("--after", type=int, default=WHATEVER)
    parser.add_argument("--token", default="")
    parser.add_argument("--device", help="on a cluster only, where it may be empty")
    given = parser.parse_args(arguments)
    place = RunPlace(os.environ["REDIS_URL"], given.run, given.folder or Path("runs") / given.run)
    spec = ServiceSpec(
        given.service, given.name, request=given.request, candidate=given.candidate, after=given.after,
        token=given.token, device=given.device,
    )  # fmt: skip
    return run_service(place, spec)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
