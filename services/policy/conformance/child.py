"""The process in which a policy is tried: whatever its code does, the command that asked goes on.

standard input   Order, as JSON
standard output  one JSON object a line: {"doing": …} before each run and check, {"finding": …} after it, {"traces": …} at the end
standard error   a run or check that takes longer than it may: where the code is at that moment; then the process ends
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bus.errors import ConfigError
from bus.events import Value
from services.policy.conformance.checks import run_checks
from services.policy.conformance.finding import Finding
from services.policy.conformance.trial import Trial, try_scripts
from services.policy.conformance.tried import Tried

LOADS = "can be made"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be tried, and how."""

    name: str
    params: dict[str, Value]
    source: str
    limit_s: float
    """Longest time for one run, or one check."""
    only_runs: bool
    """Leave out the checks: another process has done them."""


def main() -> None:
    """Tries the policy, and says what was found as soon as it is."""
    order = Order(**json.loads(sys.stdin.read()))
    for doing, finding in _everything(order):
        if finding is None:
            faulthandler.dump_traceback_later(order.limit_s, exit=True)
            _say({"doing": doing})
        else:
            faulthandler.cancel_dump_traceback_later()
            _say({"finding": asdict(finding)})


def _everything(order: Order) -> Iterator[tuple[str, Finding | None]]:
    tried, trial = Tried(order.name, order.params, order.source), Trial()
    yield LOADS, None
    try:
        settings = ", ".join(f"{key} {value}" for key, value in tried.make().params.items())
    except ConfigError as error:
        yield LOADS, Finding(LOADS, False, expected="a policy", happened=str(error))
        return
    yield LOADS, Finding(LOADS, True, settings)
    yield from try_scripts(tried, trial)
    if not order.only_runs:
        yield from run_checks(tried, trial)
    _say({"traces": trial.traces()})


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
