"""How a scripted engine behaves: how long its answers are, how fast they come, and what goes wrong.."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from services.engines.protocol import GenerateRequest

Operation = Literal["start", "wake", "load_weights", "open", "pause", "freeze", "sleep", "generate"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at the `call`-th call (from 1) of an operation: `fail` raises EngineError, `hang` lasts until the engine is closed.

    For `generate`, the call is the n-th request that starts; there `fail` ends the whole engine and `hang` stops all of its tokens.
    """

    kind: Literal["fail", "hang"]
    call: int = 1


@dataclass(frozen=True, slots=True)
class Script:
    """How a scripted engine behaves."""

    answer_length: Callable[[GenerateRequest], int]
    """Tokens of the whole answer, prefix included, at which it stops by itself."""
    tokens_per_second: float
    """Of each running request, however many run."""
    vocab_size: int = 32
    seconds: Mapping[Operation, float] = field(default_factory=dict)
    """How long an operation takes, at least."""
    faults: Mapping[Operation, Fault] = field(default_factory=dict)


def varying_length(shortest: int, longest: int) -> Callable[[GenerateRequest], int]:
    """An answer length, even over the range, that depends on the request's seed and prompt only."""

    def length(request: GenerateRequest) -> int:
        return Random(f"{request.seed} {request.prompt_tokens}").randint(shortest, longest)

    return length
