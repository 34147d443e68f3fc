"""What a replica says of a request, from what its engine said."""

from __future__ import annotations

from bus.blobs import blob_ref
from bus.events import GenerationFinished, GenerationRequested
from services.engines.protocol import GenerateOutput, Outcome
from services.payloads import answer_blob
from services.samples import PartialAnswer, pack_answer


def extend(prefix: PartialAnswer, output: GenerateOutput) -> tuple[Outcome, PartialAnswer, str]:
    """The outcome, the whole answer, and the error if there is one. An output that contradicts itself is an error, never an answer."""
    try:
        return output.outcome, prefix.extended(output.tokens, output.logprobs, output.spans), output.error
    except ValueError as error:
        return "error", prefix, f"request {output.request}: {error}"


def without_answer(replica: str, event: GenerationRequested, outcome: Outcome, error: str = "") -> GenerationFinished:
    """The fact that a request has ended, and nothing has come of it."""
    return GenerationFinished(
        request=event.request, attempt=event.attempt, replica=replica, outcome=outcome, num_tokens=0, error=error[:2_000]
    )


def with_answer(
    replica: str, event: GenerationRequested, prefix: PartialAnswer, output: GenerateOutput
) -> tuple[GenerationFinished, dict[str, bytes]]:
    """The fact that a request has ended, and the payload that must be stored before it is said."""
    outcome, answer, error = extend(prefix, output)
    if outcome not in ("stop", "length", "aborted"):
        return without_answer(replica, event, outcome, error), {}
    name, payload = answer_blob(event.request, event.attempt), pack_answer(answer)
    fact = GenerationFinished(
        request=event.request,
        attempt=event.attempt,
        replica=replica,
        outcome=outcome,
        num_tokens=len(answer.tokens),
        version_spans=tuple((span.version, span.num_tokens) for span in answer.spans),
        blob=blob_ref(name, payload),
        error=error[:2_000],
    )
    return fact, {name: payload}


def seed_of(seed: int, event: GenerationRequested) -> int:
    """A number of its own for every attempt at every answer."""
    return (seed * 1_000_003 + event.sample * 4_099 + event.answer * 61 + event.attempt) & 0x7FFF_FFFF
