"""Stepping through a recording, forth and back, with the state of every core at hand.

[3333/49582] until SwitchRequested target=train ─▶ the entry ─▶ show controller ─▶ back ─▶ …
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from bus.errors import ConfigError, SwingshiftError
from policies.registry import nearest
from replay.pattern import Pattern
from replay.show import causes, clipped, line_of, row_at
from replay.state_command import INDENT, core_lines, fitted, named_sources, state_text
from replay.state_view import LABEL_WIDTH
from replay.travel import Travel

HELP = """\
step [N]         the next entry, and what it changes; N entries on      (also: s, or nothing at all)
back [N]         the entry before, or N entries back                    (b)
until PATTERN    on to the next entry like that: a kind, fields, or both,
                 as in  SwitchRequested target=train  or  sample=17     (u)
go POSITION      to that entry                                          (g)
show [SERVICE]   the state here, of one service or of all               (p)
why              what led to this entry, back to a fact                 (w)
help             this                                                   (h)
quit             leave                                                  (q)"""
COMMANDS = ("step", "back", "until", "go", "show", "why", "help", "quit")
SHORT = {"s": "step", "": "step", "b": "back", "u": "until", "g": "go", "p": "show", "w": "why", "h": "help", "?": "help", "q": "quit"}
Say = Callable[[str], None]
Shown = dict[tuple[str, str], str]


class Session:
    """Where somebody is in a recording. `sources`: whose state is told."""

    def __init__(self, travel: Travel, position: int, sources: Sequence[str], say: Say) -> None:
        self.position = position
        self._travel = travel
        self._sources = sources
        self._say = say
        self._say_entry()

    @property
    def prompt(self) -> str:
        """Where one is."""
        return f"[{self.position}/{self._travel.last}] "

    def do(self, line: str) -> bool:
        """Follows one command; false when it was the last one. Mistakes are said, not raised."""
        word, _, rest = line.strip().partition(" ")
        command, rest = SHORT.get(word, word), rest.strip()
        try:
            match command:
                case "quit":
                    return False
                case "step":
                    self._step(_count(rest))
                case "back":
                    self._go(max(1, self.position - _count(rest)))
                case "until":
                    self._go(self._travel.find(Pattern.parse(rest), self.position))
                case "go":
                    self._go(_count(rest, "a position"))
                case "show":
                    self._show(rest)
                case "why":
                    for row in causes(self._travel.recording, self.position):
                        self._say(clipped(line_of(row)))
                case "help":
                    self._say(HELP)
                case _:
                    raise ConfigError(f"there is no command {command!r}: did you mean {nearest(command, COMMANDS)!r}? `help` lists them")
        except SwingshiftError as error:
            self._say(str(error))
        return True

    def _step(self, count: int) -> None:
        if self.position == self._travel.last:
            raise ConfigError(f"entry {self.position} is the last one")
        if count > 1:
            self._go(min(self._travel.last, self.position + count))
            return
        before = self._shown()
        self._go(self.position + 1)
        for (source, label), text in self._shown().items():
            if before.get((source, label)) != text:
                self._say(clipped(f"{INDENT}{source:<10} {label:<{LABEL_WIDTH}} {text}"))

    def _shown(self) -> Shown:
        cores = self._travel.cores(self.position, self._sources)
        return {
            (source, label): text for source, core in cores.items() for label, text in core_lines(self._travel, source, core, self.position)
        }

    def _go(self, position: int) -> None:
        self.position = self._travel.check(position)
        self._say_entry()

    def _say_entry(self) -> None:
        self._say(clipped(line_of(row_at(self._travel.recording, self.position))))

    def _show(self, service: str) -> None:
        sources = named_sources(self._travel, service) if service else self._sources
        for line in state_text(self._travel, self.position, sources):
            self._say(fitted(line))


def converse(session: Session) -> None:
    """Takes commands from the terminal, or from whatever stands in for it, until there are no more."""
    for line in _lines(session):
        try:
            if not session.do(line):
                return
        except KeyboardInterrupt:
            continue


def _lines(session: Session) -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401  (gives `input` a history and editing)

    while True:
        try:
            yield input(session.prompt)
        except (EOFError, KeyboardInterrupt):
            return


def _count(text: str, what: str = "a number of entries") -> int:
    if not text and what != "a position":
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r} is not {what}: give a whole number from 1 on")
    return int(text)
