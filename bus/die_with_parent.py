"""Runs a command that gets a signal when its parent ends, however that ends.

    python -I -S bus/die_with_parent.py PARENT_PID SIGNAL COMMAND...

Linux keeps the wish (PR_SET_PDEATHSIG) over exec. It is made here, in a process of its own with one thread, because code that runs between
fork and exec in a process with threads may deadlock. The parent, in the kernel's eyes, is the thread that started this: start it from one
that lives as long as the process, such as the main thread. Imports nothing of swingshift, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int, signal: int) -> None:
    """From now on this process gets `signal` when `parent` ends; ends at once if it is gone already. On Linux; elsewhere nothing."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != parent:
            sys.exit("the parent is gone already")


def main(arguments: list[str]) -> None:
    parent, signal, *command = arguments
    die_with(int(parent), int(signal))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
