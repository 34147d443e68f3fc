"""`math_verify`: the answer's last expression equals the reference, as the package of this name decides (the extra `math`)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from bus.errors import ConfigError

PACKAGE = "math_verify"


def check_installed() -> None:
    """Raises ConfigError without the package."""
    if find_spec(PACKAGE) is None:
        raise ConfigError(
            f"data.reward is {PACKAGE}, and the package math-verify is not installed: install the extra `math`, or use the reward number"
        )


def score(prompt: str, answer: str, reference: str) -> float:
    """1 if the expressions are equal, else 0. A reference without `$` or `\\boxed` is taken as LaTeX as a whole.

    Raises ValueError for a reference in which there is no expression.
    """
    package = importlib.import_module(PACKAGE)
    marked = reference if "$" in reference or "\\boxed" in reference else f"\\boxed{{{reference}}}"
    # The worker has a time-out of its own.
    wanted = package.parse(marked, parsing_timeout=None)
    if not wanted:
        raise ValueError(f"the reference {reference!r:.80} holds no expression that {PACKAGE} can read")
    return float(bool(package.verify(wanted, package.parse(answer, parsing_timeout=None), timeout_seconds=None)))
