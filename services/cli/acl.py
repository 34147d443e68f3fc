"""`swingshift acl DIR`: passwords and the ACL file of a shared server."""

from __future__ import annotations

import secrets
from pathlib import Path

import typer

from bus.acl import ROLES, acl_file
from bus.errors import ConfigError
from bus.keys import check_run_id
from services.cli.mistakes import mistakes_explained

FILE = "users.acl"
PASSWORD_BYTES = 32


def acl_command(folder: Path, run: str | None) -> None:
    """Makes the passwords that are missing in `folder`, each in a file with its role's name, and writes the ACL file anew."""
    with mistakes_explained():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            passwords = {role: _password(folder / role) for role in ROLES}
            (folder / FILE).write_text(acl_file(passwords, "*" if run is None else check_run_id(run)))
        except OSError as error:
            raise ConfigError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    typer.echo(
        f"{folder / FILE} has a user for each of {', '.join(passwords)}; their passwords are in the files beside it. "
        f"Start the server with --aclfile {folder / FILE}, and a service with "
        f"REDIS_URL=redis://ROLE@HOST:PORT REDIS_PASSWORD_FILE={folder}/ROLE"
    )


def _password(path: Path) -> str:
    """The password in a file, made if it is not there. The folder keeps others out; the file is readable for a container's user."""
    if not path.exists():
        path.write_text(secrets.token_urlsafe(PASSWORD_BYTES) + "\n")
    return path.read_text().strip()
