"""What a check found, told so that whoever wrote the policy knows what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the list, and below it, if the check failed, the reasons."""

    check: str
    passed: bool
    """Nothing is wrong with it, as far as it was looked at."""
    said: str = ""
    """What was looked at, or measured."""
    expected: str = ""
    happened: str = ""
    """With the run and the boundary."""
    where: str = ""
    """Line of the user's file."""
    advice: str = ""
    """What to do."""
    checked: bool = True
    """False: it could not be looked at; `said` has why."""

    @classmethod
    def not_checked(cls, check: str, why: str) -> Finding:
        """Neither passed nor failed."""
        return cls(check, True, f"not checked: {why}", checked=False)

    def lines(self) -> Sequence[str]:
        """As text."""
        head = f"{'–' if not self.checked else '✓' if self.passed else '✗'} {self.check}{f': {self.said}' if self.said else ''}"
        told = (("expected", self.expected), ("happened", self.happened), ("where", self.where), ("what to do", self.advice))
        return [head, *(line for label, text in told if text for line in _indented(label, text))]


def without_repetition(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The same mistake shows in many runs: it is told whole once."""
    told: dict[tuple[str, str, str], None] = {}
    for finding in findings:
        mistake = (finding.expected, finding.where, finding.advice)
        known = bool(finding.where) and mistake in told
        told[mistake] = None
        yield replace(finding, expected="", where="", advice="as above") if known else finding


def _indented(label: str, text: str) -> list[str]:
    first, *rest = text.splitlines()
    return [f"    {label + ':':12}{first}", *(f"    {'':12}{line}" for line in rest)]
