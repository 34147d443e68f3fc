"""Where a process listens that others on this machine come to, and where if some of them are on other machines."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
SERVERS_PORT = 6379


def own_address(server: str) -> str:
    """The address by which this machine reaches the run's server, which those who share that server most likely reach it by.

    Empty where the server is on this machine alone, or its name means nothing here.
    """
    parts = urlsplit(server)
    if parts.scheme == "unix" or not parts.hostname:
        return ""
    try:
        (family, kind, _, _, place), *_ = socket.getaddrinfo(parts.hostname, parts.port or SERVERS_PORT, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # of datagrams: nothing is sent
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if address.startswith("127.") or address == "::1" else address
