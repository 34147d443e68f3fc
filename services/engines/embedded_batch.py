"""The requests that generate together: admission, one token for each, and what becomes of those that end.

    queued ──admit (prefill)──▶ rows ──step (decode)──▶ rows ──▶ outputs

Rows are the first rows of the cache without gaps: when one ends, the last takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from services.engines.config import EngineConfig
from services.engines.embedded_model import ServedModel
from services.engines.embedded_sampling import SamplingRows, draw, sampling_rows
from services.engines.protocol import GenerateOutput, GenerateRequest, Outcome
from services.samples import VersionSpan


@dataclass(slots=True)
class _Row:
    """A request that generates. The newest token is not in the cache yet, so `length` counts those before it."""

    request: GenerateRequest
    length: int
    uniforms: Random
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    """Of its tokens, those that earlier weights have drawn."""

    def end_span(self, version: int) -> None:
        """All tokens since the last call are of this version."""
        if self.spans and self.spans[-1].version == version:
            self.spans.pop()
        count = len(self.tokens) - sum(span.num_tokens for span in self.spans)
        if count > 0:
            self.spans.append(VersionSpan(version, count))


class Batch:
    """Used by one thread. `admit` and `step` return the outputs of the requests that ended."""

    def __init__(self, model: ServedModel, config: EngineConfig) -> None:
        self._model = model
        self._max_rows = config.max_running_requests
        self._admit_requests = config.admit_requests
        self._admit_wait_steps = config.admit_wait_steps
        self._max_batched_tokens = config.max_batched_tokens
        self._rows: list[_Row] = []
        self._sampling: SamplingRows | None = None
        self._waited_steps = 0
        self.generated_tokens = 0
        self.prefills = 0
        self.steps = 0

    def __len__(self) -> int:
        return len(self._rows)

    def next_to_admit(self, queued: Mapping[str, GenerateRequest]) -> list[GenerateRequest]:
        """Which of the queued requests to admit now: none while it pays to wait for company."""
        room = self._max_rows - len(self._rows)
        fitting = min(room, len(queued))
        if fitting == 0:
            return []
        alone = min(self._admit_requests, self._max_rows) > fitting
        if alone and self._rows and self._waited_steps < self._admit_wait_steps:
            return []
        chosen: list[GenerateRequest] = []
        width = 0
        for request in queued.values():
            width = max(width, len(request.prompt_tokens) + len(request.prefix_tokens))
            if len(chosen) == fitting or (chosen and width * (len(chosen) + 1) > self._max_batched_tokens):
                break
            chosen.append(request)
        return chosen

    def admit(self, requests: Sequence[GenerateRequest]) -> list[GenerateOutput]:
        """Starts requests: one forward pass over their prompts, of equal ones over one, and their first tokens."""
        distinct: dict[tuple[int, ...], list[GenerateRequest]] = {}
        for request in requests:
            distinct.setdefault(request.prompt_tokens + request.prefix_tokens, []).append(request)
        first_row = len(self._rows)
        forward = self._model.forward
        logits = forward.prefill(list(distinct), first_row, max((row.length for row in self._rows), default=0))
        sources = list(range(len(distinct)))
        new = [_started(same[0]) for same in distinct.values()]
        for source, same in enumerate(distinct.values()):
            sources.extend([source] * (len(same) - 1))
            new.extend(_started(request) for request in same[1:])
        copies = sources[len(distinct) :]
        if copies:
            forward.cache.copy_rows([first_row + source for source in copies], first_row + len(distinct), max(map(len, distinct)))
        rows = sampling_rows([row.request.sampling for row in new], self._model.vocab_size, self._model.device)
        self._append(new, *draw(logits[sources], rows, [row.uniforms.random() for row in new]))
        self._rows.extend(new)
        self._sampling = None
        self._waited_steps = 0
        self.prefills += 1
        return self._end_finished()

    def step(self) -> list[GenerateOutput]:
        """One more token for every row."""
        rows = self._rows
        logits = self._model.forward.decode([row.tokens[-1] for row in rows], [row.length for row in rows])
        for row in rows:
            row.length += 1
        if self._sampling is None:
            self._sampling = sampling_rows([row.request.sampling for row in rows], self._model.vocab_size, self._model.device)
        self._append(rows, *draw(logits, self._sampling, [row.uniforms.random() for row in rows]))
        self._waited_steps += 1
        self.steps += 1
        return self._end_finished()

    def end_spans(self, version: int) -> None:
        """The model gets other weights: all tokens so far are of these. What is cached of them stays."""
        for row in self._rows:
            row.end_span(version)

    def abort(self, requests: Collection[str]) -> list[GenerateOutput]:
        """Ends these, as far as they are here, with the tokens they have."""
        return self._end({number: "aborted" for number, row in enumerate(self._rows) if row.request.request in requests})

    def abort_all(self) -> list[GenerateOutput]:
        """Ends all of them with the tokens they have."""
        return self._end(dict.fromkeys(range(len(self._rows)), "aborted"))

    def _append(self, rows: Sequence[_Row], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
        self.generated_tokens += len(rows)

    def _end_finished(self) -> list[GenerateOutput]:
        ended: dict[int, Outcome] = {}
        for number, row in enumerate(self._rows):
            if not math.isfinite(row.logprobs[-1]):
                ended[number] = "error"
            elif row.tokens[-1] in row.request.sampling.stop_token_ids:
                ended[number] = "stop"
            elif len(row.tokens) >= row.request.max_new_tokens:
                ended[number] = "length"
        return self._end(ended)

    def _end(self, ended: Mapping[int, Outcome]) -> list[GenerateOutput]:
        if not ended:
            return []
        outputs = [self._output(self._rows[number], outcome) for number, outcome in ended.items()]
        for number in sorted(ended, reverse=True):
            last = self._rows.pop()
            if number < len(self._rows):
                self._model.forward.cache.move_row(len(self._rows), number, last.length)
                self._rows[number] = last
        self._sampling = None
        return outputs

    def _output(self, row: _Row, outcome: Outcome) -> GenerateOutput:
        request = row.request.request
        version = self._model.version
        assert version is not None, "nothing generates before weights were loaded"
        if outcome == "error":
            return GenerateOutput(
                request, "error", error=f"the model's logits are not finite after {len(row.tokens)} tokens with weights version {version}"
            )
        row.end_span(version)
        return GenerateOutput(request, outcome, tuple(row.tokens), tuple(row.logprobs), tuple(row.spans))


def _started(request: GenerateRequest) -> _Row:
    uniforms = Random(request.seed)
    for _ in request.prefix_tokens:
        uniforms.random()
    return _Row(request, len(request.prompt_tokens) + len(request.prefix_tokens), uniforms)
