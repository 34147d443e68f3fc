"""Servers as users have them: on a TCP port of the loopback interface, with a password, an ACL file or TLS."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TLS = Path(__file__).with_name("tls")
"""A self-signed certificate for localhost and its key, made for these tests and used nowhere else."""
CERTIFICATE = TLS / "localhost.pem"
BOUND_S = 60.0
"""A wait for another process that fails the test when it takes this long; never reached by a healthy one."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tls_options() -> Sequence[str]:
    """TLS only, for clients without a certificate of their own; PORT stands for the port."""
    files = ["--tls-cert-file", str(CERTIFICATE), "--tls-key-file", str(TLS / "localhost.key"), "--tls-ca-cert-file", str(CERTIFICATE)]
    return ["--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no", *files]


@contextmanager
def running(binary: Path, folder: Path, *options: str, port: int | None = None) -> Iterator[int]:
    """A server on a free port, or on `port`; gives the port. PORT in its options stands for it."""
    port = port or free_port()
    words = (option.replace("PORT", str(port)) for option in options)
    command = [str(binary), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + BOUND_S
        while not accepts(port):
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            assert time.monotonic() < give_up
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
