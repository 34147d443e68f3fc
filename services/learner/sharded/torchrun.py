"""What torchrun, or whoever else starts ranks, says in the environment of each."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass

from bus.errors import ConfigError
from services.learner.config import LearnerConfig

INTERFACE = "GLOO_SOCKET_IFNAME"
_ADDRESS_OF_INTERFACE = 0x8915
"""Linux's SIOCGIFADDR."""


@dataclass(frozen=True, slots=True)
class Torchrun:
    """This process is rank `rank` of `size`, and the `local_rank`-th on its machine."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def here(cls) -> Torchrun | None:
        """None: this process was started as the only one."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(rank, size, int(os.environ.get("LOCAL_RANK", rank)))

    def check(self, config: LearnerConfig) -> None:
        """Raises ConfigError when there are other ranks than are configured."""
        if self.size != config.ranks:
            raise ConfigError(
                f"actor.ranks is {config.ranks}, and {self.size} ranks were started: start as many as that, or plan the run with "
                f"actor.ranks={self.size}"
            )


def choose_interface() -> None:
    """Has gloo use the network that rank 0 is reached by, unless the user has named one.

    It would take that of this machine's own name, which on many machines is the loopback, where no other machine reaches it.
    """
    if INTERFACE not in os.environ and (found := interface_to(os.environ["MASTER_ADDR"])):
        os.environ[INTERFACE] = found


def interface_to(host: str) -> str:
    """The network interface by which this machine reaches a host; empty: none is known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            address = probe.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address_of(name, probe) == address), "")
    except OSError:
        return ""


def _address_of(interface: str, probe: socket.socket) -> str:
    try:
        answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", interface.encode()))
    except OSError:
        return ""  # it has none
    return socket.inet_ntoa(answer[20:24])
