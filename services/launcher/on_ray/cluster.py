"""The connection to a Ray cluster: which one, and in our words why not.

    --address ─▶ RAY_ADDRESS ─▶ a cluster that runs on this machine ─▶ one of this machine's own, for as long as the command runs

Nothing of Ray is imported before it is connected to: all else works where it is not installed.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import urlsplit

from bus.errors import ConfigError
from services.launcher.protocol import Say

NAMESPACE = "swingshift"
KNOWN_RAY = "2.60.0"
"""What this was tried with, see requirements-ray.lock."""
OLDEST_RAY = (2, 50)
ADDRESS = "RAY_ADDRESS"
OPTION = "--address"
PORT = 6379
"""Of a cluster's head, unless it is named."""
CONNECT_S = 5.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2, and so of Ray's head, says first: a connection, and settings, of which there are none."""
SETTINGS_FRAME = 4
"""The kind of frame that such a server answers with; it is the fourth byte (RFC 9113, 4.1)."""
INSTALL = f"pip install 'ray=={KNOWN_RAY}'"


def connect(address: str | None, environment: Mapping[str, str], runtime_env: Mapping[str, object], say: Say) -> None:
    """Joins a cluster as a driver, until `disconnect`. Raises ConfigError, with what to do, where there is none to join."""
    check_installed()
    named, by = which(address, environment)
    if named is not None and named != "auto":
        check_reachable(named, by)
    if _join(named or "auto", by, runtime_env):
        say(f"on the Ray cluster at {joined()}")
        return
    if named is not None:
        raise ConfigError(f"{by} is auto, and no Ray cluster runs on this machine: start one with `ray start --head`, or name its address")
    say(
        f"no Ray cluster is named ({OPTION}, {ADDRESS}), and none runs on this machine: Ray begins one of this machine's own, which ends "
        "with the command"
    )
    _init("local", runtime_env)


def joined() -> str:
    """HOST:PORT of the head of the cluster that this process is a driver of."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def disconnect() -> None:
    """Leaves the cluster: what was started on it ends. One of this machine's own ends, too."""
    import ray

    with keeping_signals():
        ray.shutdown()


def check_installed() -> None:
    """Raises ConfigError where Ray is not there, or too old."""
    if find_spec("ray") is None:
        raise ConfigError(f"--on ray: Ray is not installed here: {INSTALL} (on every node the same version), or leave out --on ray")
    version = metadata.version("ray")
    if not is_new_enough(version):
        raise ConfigError(f"--on ray: Ray {version} is installed here, {'.'.join(map(str, OLDEST_RAY))} or newer is needed: {INSTALL}")


def is_new_enough(version: str) -> bool:
    """This version of Ray has all that is used here."""
    return tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_RAY


def which(address: str | None, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The address that the user named, and by what; None: none. Raises ConfigError for one of another kind."""
    named, by = (address, OPTION) if address else (environment.get(ADDRESS) or None, ADDRESS)
    if named is None or named == "auto":
        return named, by
    scheme = urlsplit(named).scheme if "://" in named else ""
    if scheme == "ray":
        raise ConfigError(
            f"{by} is {named}, a Ray client's address: a run that goes through a proxy ends with the connection. Begin it on a node of the "
            "cluster (--address HOST:PORT of its head), or send it there: ray job submit --working-dir . -- python swingshift.py run …"
        )
    if scheme:
        raise ConfigError(
            f"{by} is {named}: name the cluster's head as HOST:PORT, such as 10.0.0.1:{PORT}; {scheme}:// is for `ray job submit`"
        )
    return named, by


def check_reachable(address: str, by: str) -> None:
    """Raises ConfigError where nobody listens, or something else does: Ray itself would try for minutes, and hear no Ctrl-C."""
    host, _, port = address.rpartition(":") if ":" in address else (address, ":", str(PORT))
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
            connection.sendall(PREFACE)
            answer = connection.recv(9)
    except ValueError as error:
        raise ConfigError(f"{by} is {address}: name the cluster's head as HOST:PORT, such as 10.0.0.1:{PORT}") from error
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({by}): {error}; is its head running (`ray start --head --port={port}`), and does a "
            "firewall let this machine reach it?"
        ) from error
    if answer[3:4] != bytes((SETTINGS_FRAME,)):
        raise ConfigError(
            f"what listens at {address} ({by}) is no Ray cluster's head: it answers {answer!r}; name the head's port, "
            f"{PORT} unless it was started with another (`ray start --head --port=…`)"
        )


@contextmanager
def keeping_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever heard it before goes on to."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _join(address: str, by: str, runtime_env: Mapping[str, object]) -> bool:
    """False: `address` is auto, and no cluster runs here."""
    try:
        _init(address, runtime_env)
    except ConnectionError as error:
        if address == "auto":
            return False
        raise ConfigError(_refused(address, by, error)) from error
    return True


def _init(address: str, runtime_env: Mapping[str, object]) -> None:
    """Raises ConnectionError where there is none, ConfigError for one that does not fit."""
    import ray

    own = {"include_dashboard": False} if address == "local" else {}
    with keeping_signals():
        try:
            ray.init(
                address=address, namespace=NAMESPACE, runtime_env=dict(runtime_env), log_to_driver=False, logging_level=logging.ERROR, **own
            )  # fmt: skip
        except ConnectionError:
            ray.shutdown()
            raise
        except (RuntimeError, ValueError, TypeError, OSError, ray.exceptions.RayError) as error:
            ray.shutdown()
            raise ConfigError(unfit(address, error)) from error


def unfit(address: str, error: Exception) -> str:
    """Why Ray does not take this process as a driver there, in our words."""
    words = " ".join(str(error).split())
    if _wants_token(words):
        return _without_token(address)
    if "ersion mismatch" in words:
        return (
            f"the Ray cluster at {address} and this process have not the same versions: {words}; use the same Python and Ray ({INSTALL}) "
            "on every node and here"
        )
    return f"Ray cannot use the cluster at {address} with the given runtime environment: {words}"


def _refused(address: str, by: str, error: Exception) -> str:
    words = " ".join(str(error.__cause__ or error).split())
    if _wants_token(words):
        return _without_token(address)
    return (
        f"the Ray cluster at {address} ({by}) cannot be joined from here: {words}; a run begins on a node of the "
        "cluster: start Ray here, too (`ray start --address=…`), or send the run there with `ray job submit`"
    )


def _wants_token(words: str) -> bool:
    return "uthenticat" in words


def _without_token(address: str) -> str:
    return (
        f"the Ray cluster at {address} lets nobody in without its token: set RAY_AUTH_MODE=token, and have the token of its head "
        "(`ray get-auth-token` there) in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    )
