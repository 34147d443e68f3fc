"""The requests that an engine has at vLLM, and those that wait until there is room. All of it runs on the server's loop.

    add ──▶ waiting ──(room)──▶ active: at vLLM ──▶ the docket's output

No more are at vLLM than it runs, so that an abort ends waiting ones at once, and none is left in a queue of vLLM's that outlives a pause.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from services.engines.docket import Docket
from services.engines.protocol import GenerateOutput, GenerateRequest, Outcome
from services.engines.vllm_server import VllmServer
from services.samples import VersionSpan

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

ROUNDING = 1e-4
_OUTCOMES: dict[str | None, Outcome] = {"stop": "stop", "length": "length", "abort": "aborted"}


class Flights:
    """`salt` says, when a request starts, what separates its cached tokens from others'; `ended` is told when vLLM has ended."""

    def __init__(
        self, server: VllmServer, docket: Docket, limit: int, salt: Callable[[], str | None], ended: Callable[[str], None]
    ) -> None:
        self._server = server
        self._ended = ended
        self._docket = docket
        self._limit = limit
        self._salt = salt
        self._waiting: dict[str, GenerateRequest] = {}
        self._active: dict[str, asyncio.Task[None]] = {}
        self._aborted: set[str] = set()
        self._adding: set[str] = set()
        """Of the active ones, those that vLLM does not have yet."""
        self._all_added = asyncio.Event()
        self._frozen = False

    @property
    def running(self) -> int:
        """Requests at vLLM; may be read from any thread."""
        return len(self._active)

    def add(self, request: GenerateRequest) -> None:
        """Takes a request that the docket has."""
        self._waiting[request.request] = request
        self._fill()

    async def abort(self, requests: Sequence[str]) -> None:
        """Waiting ones end at once, those at vLLM with the tokens that have arrived."""
        at_vllm = []
        for request in requests:
            if self._waiting.pop(request, None) is not None:
                self._finish(GenerateOutput(request, "aborted"))
            elif request in self._active:
                self._aborted.add(request)
                at_vllm.append(request)
        if at_vllm:
            await self._server.abort(at_vllm)

    async def abort_all(self) -> None:
        """Returns when nothing is left."""
        while self._waiting or self._active:
            await self.abort([*self._waiting, *self._active])
            if self._active:
                await asyncio.wait(self._active.values(), timeout=0.05)

    async def pause(self, *, clear_cache: bool) -> None:
        """Ends everything, with all tokens that vLLM has generated; returns when its device is idle."""
        await self.abort(list(self._waiting))
        self._frozen = False
        await self._server.pause(clear_cache=clear_cache)
        await self.abort_all()

    async def freeze(self) -> None:
        """Leaves everything where it is; returns when vLLM's device is idle."""
        self._frozen = True
        # One that came to vLLM later would start under the next weights with what older ones have cached.
        if self._adding:
            self._all_added.clear()
            await self._all_added.wait()
        await self._server.freeze()

    async def open(self) -> None:
        """Lets everything go on, and what waits start."""
        await self._server.resume()
        self._frozen = False
        self._fill()

    def drop(self) -> None:
        """Forgets everything: vLLM has ended, and the docket has told so."""
        self._waiting.clear()
        for task in self._active.values():
            task.cancel()

    def _fill(self) -> None:
        while self._waiting and len(self._active) < self._limit and not self._frozen:
            request = self._waiting.pop(next(iter(self._waiting)))
            self._adding.add(request.request)
            self._active[request.request] = asyncio.get_running_loop().create_task(self._fly(request))

    async def _fly(self, request: GenerateRequest) -> None:
        async def added() -> None:
            self._has_come(request)
            # The abort may have come before vLLM knew the id.
            if request.request in self._aborted:
                await self._server.abort([request.request])

        try:
            completion = await self._server.generate(request, self._salt(), added)
            output = to_output(request, cast("CompletionOutput", completion))
        except Exception as error:  # noqa: BLE001  (one request's failure, whatever vLLM raises; the engine's own end is told elsewhere)
            output = GenerateOutput(request.request, "error", error=f"{type(error).__name__}: {error}")
            if self._server.errored:
                self._ended(f"vLLM's engine core has ended: {error}")
        finally:
            self._active.pop(request.request, None)
            self._has_come(request)
            self._aborted.discard(request.request)
        self._finish(output)
        self._fill()

    def _has_come(self, request: GenerateRequest) -> None:
        """vLLM has it, or never will."""
        self._adding.discard(request.request)
        if not self._adding:
            self._all_added.set()

    def _finish(self, output: GenerateOutput) -> None:
        with self._docket.changed:
            if output.request in self._docket:
                self._docket.finish(output)


def to_output(request: GenerateRequest, completion: CompletionOutput) -> GenerateOutput:
    """What vLLM says of a request, checked: lengths are never mended, and a token without a version is an error."""
    tokens = tuple(completion.token_ids)
    outcome = _OUTCOMES.get(completion.finish_reason)
    logprobs = _logprobs(request, completion, tokens)
    spans = tuple(_span(span.version, span.end - span.start) for span in completion.weight_versions or () if span.end > span.start)
    told = sum(span.num_tokens for span in spans)
    wrong = sum(not -math.inf < value <= 0 for value in logprobs)
    if outcome is None or not len(tokens) == len(logprobs) == told or wrong:
        return GenerateOutput(
            request.request, "error", error=f"vLLM ended it with {completion.finish_reason}, {len(tokens)} tokens, {len(logprobs)} "
            f"log-probabilities ({wrong} that are none) and spans over {told}",
        )  # fmt: skip
    return GenerateOutput(request.request, outcome, tokens, logprobs, spans)


def _logprobs(request: GenerateRequest, completion: CompletionOutput, tokens: tuple[int, ...]) -> tuple[float, ...]:
    """Of the sampled tokens. At temperature 0 the distribution that was sampled from has one token."""
    flat = completion.logprobs
    if flat is None or [flat.token_ids[start] for start in flat.start_indices] != list(tokens):
        return ()
    if request.sampling.temperature == 0:
        return (0.0,) * len(tokens)
    # A sum of rounded probabilities may be above 1 by a rounding.
    return tuple(0.0 if 0 < flat.logprobs[start] < ROUNDING else flat.logprobs[start] for start in flat.start_indices)


def _span(version: str, num_tokens: int) -> VersionSpan:
    if not version.isdecimal():
        raise ValueError(f"{num_tokens} tokens were generated by weights {version!r}, which nobody published")
    return VersionSpan(int(version), num_tokens)
