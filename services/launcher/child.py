"""Work in a process of its own, so that the supervisor never loads torch; what it has to say comes back line by line.

run_child ──arguments──▶ python -m MODULE ──say(word, rest)──▶ take(word, rest)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from services.launcher.local import dying_with_us

TAIL_LINES = 5
INTERRUPT_S = 5.0


class ChildFailed(Exception):
    """It ended otherwise than well: its exit code, and the end of what it complained of."""

    def __init__(self, code: int, tail: str) -> None:
        super().__init__(tail)
        self.code = code
        self.tail = tail


def run_child(
    module: str, arguments: Sequence[str], take: Callable[[str, str], None], environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Runs `module` to its end; `take` gets each line that it says, its first word and the rest. Raises ChildFailed."""
    command = dying_with_us([sys.executable, "-P", "-m", module, *arguments])
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=os.environ | environment, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    word, _, rest = line.strip().partition(" ")
                    take(word, rest)
            except BaseException:
                _interrupt(process)
                raise
        if process.returncode == 0:
            return
        errors.seek(0)
        raise ChildFailed(process.returncode, "\n".join(errors.read().strip().splitlines()[-TAIL_LINES:]))


def say(word: str, rest: str) -> None:
    """Says something to who runs this process as a child."""
    sys.stdout.write(f"{word} {rest}\n")
    sys.stdout.flush()


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Lets it remove what it began; not for long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.kill()
