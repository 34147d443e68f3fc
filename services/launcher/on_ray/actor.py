"""What Ray starts on a node: one incarnation of one service, as a child process of its actor.

    driver ──start(order)──▶ ServiceActor ──(one thread)──▶ LocalLauncher ──▶ service, and what it starts
       ◀──────── wait() ────────┘                └── the actor's process dies: the kernel kills the service

A child and not the actor's own process, so that signals, exit codes, cores, torch's settings and an engine's processes are as on one
machine, and nothing in it finds itself inside of Ray. One thread looks after it, for a process ends with the thread that started it.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import bus
from services.launcher.local import LocalHandle, LocalLauncher, started_at
from services.launcher.on_ray.orders import Begun, Ended, Order, Where
from services.launcher.on_ray.remains import TOKEN_VARIABLE

POLL_S = 0.05
ANSWER_S = 60.0
"""So long one `wait` lasts at most: then it is asked again."""
CALLS = 16
"""Calls that an actor takes at a time."""
RAYS = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_JOB_ID", "RAY_RAYLET_PID")
"""Ray sets these for a process of its own: the first one by a number of CPUs that is a matter of books."""


class ServiceActor:
    """One incarnation. All methods may be called more than once, and at a time: an answer can be lost on its way."""

    def __init__(self) -> None:
        self._begun: Future[Begun] = Future()
        self._ended: Future[Ended] = Future()
        self._words: queue.Queue[Order | str] = queue.Queue()
        self._lock = threading.Lock()
        self._looks_after: threading.Thread | None = None

    def where(self) -> str:
        """Where Ray has put this."""
        import ray

        context = ray.get_runtime_context()
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        address = ray.util.get_node_ip_address()
        return Where(node=context.get_node_id(), host=socket.gethostname(), address=address, gpus=gpus).model_dump_json()

    def free_port(self) -> str:
        """A port of this node that nobody listens on."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return str(probe.getsockname()[1])

    def start(self, order: str) -> str:
        """Starts the service; returns its process."""
        with self._lock:
            if self._looks_after is None:
                given = Order.model_validate_json(order)
                forget_ray(users_environment())
                self._looks_after = threading.Thread(target=self._look_after, args=(given,), name="looks after the service", daemon=True)
                self._looks_after.start()
        return self._begun.result().model_dump_json()

    def wait(self) -> str:
        """How it ended, once it has; empty: it goes on."""
        try:
            return self._ended.result(ANSWER_S).model_dump_json()
        except TimeoutError:
            return ""

    def terminate(self) -> str:
        """Asks the service to end in order."""
        self._words.put("terminate")
        return ""

    def kill(self) -> str:
        """Ends the service and everything it started."""
        self._words.put("kill")
        return ""

    def _look_after(self, order: Order) -> None:
        """From its start to its end, on one thread."""
        try:
            handle = start_here(order)
            since = started_at(handle.pid)
            assert since is not None, "nobody has reaped it yet"
            self._begun.set_result(Begun(pid=handle.pid, since=since))
            while (code := handle.poll()) is None:
                try:
                    word = self._words.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                if word == "kill":
                    handle.kill()
                else:
                    handle.terminate()
            self._ended.set_result(Ended(code=code, how=handle.how_it_ended(order.label)))
        except BaseException as error:  # noqa: BLE001  (the driver must hear of it, whatever it is)
            for answer in (self._begun, self._ended):
                if not answer.done():
                    answer.set_exception(error)


def start_here(order: Order) -> LocalHandle:
    """Starts the service of an order as a process of this one's."""
    command = order.command
    launcher = LocalLauncher(
        order.place,
        None if command is None else lambda _: command,
        environment=service_environment(order),
        folder=working_folder(order.working_folder),
    )
    return launcher.spawn(order.spec)


def working_folder(drivers: Path) -> Path:
    """Where relative paths of a configuration are looked for on this node: where the driver does, if that folder is here, too."""
    return drivers if drivers.is_dir() else Path.cwd()


def service_environment(order: Order) -> dict[str, str]:
    """What a service has in its environment besides its actor's."""
    root = str(Path(bus.__file__).parents[1])
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != root]
    return {"PYTHONPATH": os.pathsep.join([root, *others]), TOKEN_VARIABLE: order.spec.token, **order.environment}


def forget_ray(users: Mapping[str, str]) -> None:
    """Takes out of this process's environment what Ray put there for itself; `users`: what the user did, which stays."""
    for name in RAYS:
        if name not in users:
            os.environ.pop(name, None)


def users_environment() -> dict[str, str]:
    """What the user has set for this node: where Ray was started on it, and in the run's `cluster.runtime_env`."""
    import ray

    given = ray.get_runtime_context().runtime_env.get("env_vars", {})
    try:
        lines = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        lines = []
    return dict(line.split("=", 1) for line in lines if "=" in line) | {str(name): str(value) for name, value in given.items()}
