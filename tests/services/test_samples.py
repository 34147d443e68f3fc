"""C-26: ids, log-probabilities and version spans of an answer have one length, and nothing mends them."""

from __future__ import annotations

import pytest

from services.engines.protocol import GenerateOutput
from services.replica.answers import extend
from services.samples import Answer, PartialAnswer, VersionSpan, pack_answer, unpack_answer


@pytest.mark.parametrize(
    ("logprobs", "spans"),
    [((-0.1,), (VersionSpan(0, 2),)), ((-0.1, -0.2, 0.0), (VersionSpan(0, 2),)), ((-0.1, -0.2), (VersionSpan(0, 1),))],
)
def test_c26_lengths_that_differ_are_refused_with_their_numbers(logprobs: tuple[float, ...], spans: tuple[VersionSpan, ...]) -> None:
    numbers = f"2 tokens, {len(logprobs)} log-probabilities and spans over {spans[0].num_tokens}"
    with pytest.raises(ValueError, match=numbers):
        Answer((1, 2), logprobs, spans, "stop", 0.0)
    with pytest.raises(ValueError, match=numbers):
        PartialAnswer((1, 2), logprobs, spans)
    with pytest.raises(ValueError, match=numbers):
        PartialAnswer().extended((1, 2), logprobs, spans)


def test_c26_an_engine_whose_output_contradicts_itself_gives_an_error_and_the_answer_stays_as_it_was() -> None:
    before = PartialAnswer((5,), (-0.5,), (VersionSpan(3, 1),))
    outcome, answer, error = extend(before, GenerateOutput("7.0", "stop", (1, 2), (-0.1,), (VersionSpan(3, 2),)))
    assert (outcome, answer) == ("error", before)
    assert error.startswith("request 7.0: an answer has 3 tokens, 2 log-probabilities")


def test_c26_token_ids_survive_the_way_through_a_payload_without_being_tokenised_again() -> None:
    answer = PartialAnswer((5, 99_999, 0), (-0.5, -1.0, -0.25), (VersionSpan(3, 1), VersionSpan(4, 2)))
    assert unpack_answer(pack_answer(answer)) == answer
