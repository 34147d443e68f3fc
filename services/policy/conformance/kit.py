"""Tries a policy in two processes that differ in all that should not matter, and gathers what was found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from bus.events import Value
from services.launcher.local import dying_with_us
from services.policy.conformance.checks import says_the_same_everywhere
from services.policy.conformance.child import Order
from services.policy.conformance.finding import Finding
from services.policy.conformance.tried import Tried

LIMIT_S = 30.0
"""Longest time for one run or one check; a sound policy needs a hundredth of it."""
PLACES: tuple[Mapping[str, str], ...] = ({"PYTHONHASHSEED": "1", "TZ": "UTC"}, {"PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu"})
MOST_FRAMES = 12
Progress = Callable[[str], None]
"""Is told what is being done."""


def silent(doing: str) -> None:
    """Shows nothing."""


@dataclass
class _Said:
    """What one process told."""

    findings: list[Finding] = field(default_factory=list)
    traces: dict[str, list[str]] | None = None
    doing: str = ""

    def take(self, line: str) -> None:
        """One line of its output."""
        match json.loads(line):
            case {"doing": str(doing)}:
                self.doing = doing
            case {"finding": dict(fields)}:
                self.findings.append(Finding(**fields))
            case {"traces": dict(traces)}:
                self.traces = traces
            case _:
                pass


def try_policy(
    name: str, params: Mapping[str, Value], source: str = "", limit_s: float = LIMIT_S, told: Progress = silent
) -> list[Finding]:
    """Everything that is found of a policy; it conforms if all of it passed."""
    tried = Tried(name, params, source)
    here = _run(Order(name, dict(params), source, limit_s, only_runs=False), PLACES[0], tried, told)
    if here.traces is None:
        return here.findings
    there = _run(Order(name, dict(params), source, limit_s, only_runs=True), PLACES[1], tried, told)
    failed = [finding for finding in there.findings if not finding.passed and finding not in here.findings]
    return [*here.findings, *failed, says_the_same_everywhere(here.traces, there.traces or {}, tried)]


def _run(order: Order, place: Mapping[str, str], tried: Tried, told: Progress) -> _Said:
    said = _Said()
    command = dying_with_us([sys.executable, "-P", "-m", "services.policy.conformance.child"])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | place, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        complaints: list[str] = []
        listening = threading.Thread(target=lambda: complaints.extend(process.stderr or ()), daemon=True)
        listening.start()
        try:
            process.stdin.write(json.dumps(asdict(order)))
            process.stdin.close()
            for line in process.stdout:
                said.take(line)
                told(said.doing)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        process.wait()
        listening.join()
    if process.returncode != 0:
        said.findings.append(_ended(said.doing, process.returncode, "".join(complaints), order.limit_s, tried))
    return said


def _ended(doing: str, code: int, complaints: str, limit_s: float, tried: Tried) -> Finding:
    """The process did not come to its end: the policy took all of its time, or ended it."""
    if complaints.startswith("Timeout"):
        expected = f"an end of this within {limit_s:g} s"
        advice = "look for a loop that does not end; what a policy does at a boundary must not grow with the length of the run"
        return Finding(doing, False, "", expected, "it hangs, or takes much too long", _hanging(complaints, tried), advice)
    happened = f"the process ended with {code}:\n{complaints.strip()[-1500:]}"
    return Finding(doing, False, "", "a policy that leaves its process alone", happened)


def _hanging(complaints: str, tried: Tried) -> str:
    """The innermost line of the user's file, else of anything of ours, where the process was."""
    frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', complaints)[:MOST_FRAMES]
    own = [frame for frame in frames if frame[0] == tried.file]
    file, line, function = (own or frames or [("", "1", "")])[0]
    lines = tried.source.splitlines()
    text = lines[int(line) - 1].strip() if own and int(line) <= len(lines) else ""
    return f"{file}, line {line}, in {function}: {text}"
