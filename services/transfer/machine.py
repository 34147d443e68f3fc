"""Which machine this is, as the ends of a transfer compare it."""

from __future__ import annotations

import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """Its name, and which start of it this is: names alone may be the same on several."""
    try:
        return f"{socket.gethostname()}/{BOOT.read_text().strip()[:8]}"
    except OSError:
        return socket.gethostname()
