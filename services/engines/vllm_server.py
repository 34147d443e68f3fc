"""One vLLM with the event loop that it lives in, which is a thread; its engine core is a child process that ends with this one.

    replica's thread ──call──▶ loop's thread ──ZeroMQ──▶ engine core (child) ──▶ workers (with tensor parallelism)

Every call has a limit. One that does not end in time, or ends badly, leaves the server in an unknown state: its engine counts it as failed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bus.errors import EngineError
from services.engines.protocol import GenerateRequest
from services.engines.vllm_arguments import starting_environment
from services.engines.vllm_plugin import FILE_TRANSFER
from services.engines.vllm_probe import check_installed

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

T = TypeVar("T")

END_S = 10.0
"""How long its processes may take to end before they are killed."""


class VllmServer:
    """Started once, closed once. Methods that are coroutines are to be run by `call`."""

    def __init__(self, arguments: Mapping[str, object], environment: Mapping[str, str] | None = None) -> None:
        self._arguments = arguments
        self._environment = environment
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._tokens = 0
        self._children: list[BaseProcess] = []
        self._ended: Callable[[str], None] | None = None
        self._closing = False
        self._llm: AsyncLLM | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has neither ended nor been closed."""
        return self._llm is not None and not self._closing and all(child.is_alive() for child in self._children)

    @property
    def errored(self) -> bool:
        """Whether vLLM itself says that its engine core is gone."""
        return self._llm is not None and bool(self._llm.errored)

    @property
    def generated_tokens(self) -> int:
        """Of all requests since it started."""
        return self._tokens

    @property
    def pids(self) -> list[int]:
        """Its child processes."""
        return [child.pid for child in self._children if child.pid is not None]

    def start(self, timeout_s: float) -> None:
        """Returns when it can be called: awake, with meaningless weights. Raises EngineError."""
        check_installed()
        before = set(multiprocessing.active_children())
        self._thread.start()
        try:
            with starting_environment(self._environment):
                self.call("start", self._build(), timeout_s)
        except EngineError:
            self._children = [child for child in multiprocessing.active_children() if child not in before]
            self.close()
            raise
        self._children = [child for child in multiprocessing.active_children() if child not in before]
        self.post(self._watch)

    def call(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        """Runs it on the loop. Raises EngineError when it does not end in time, or with any error."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        began = time.monotonic()
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            waited = time.monotonic() - began
            raise EngineError(f"{what} has not ended after {waited:.1f} s: kill the replica") from error
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{what} failed in vLLM: {type(error).__name__}: {error}") from error

    def post(self, action: Callable[[], object]) -> None:
        """Runs it on the loop, soon."""
        self._loop.call_soon_threadsafe(action)

    def listen(self, ended: Callable[[str], None]) -> None:
        """Who is told, on the loop, when its processes end by themselves."""
        self._ended = ended

    async def generate(self, request: GenerateRequest, salt: str | None, added: Callable[[], Coroutine[object, object, None]]) -> object:
        """The final output of a request (vLLM's `CompletionOutput`); `added` is run once it can be aborted by its id."""
        from vllm.inputs.engine import tokens_input

        prompt = tokens_input([*request.prompt_tokens, *request.prefix_tokens], cache_salt=salt)
        queue = await self._built.add_request(request.request, prompt, _sampling_params(request))
        await added()
        output = await queue.get()
        while not output.finished:
            output = await queue.get()
        final: CompletionOutput = output.outputs[0]
        return final

    async def abort(self, requests: Sequence[str]) -> None:
        """Those that it has end at once, with the tokens that have arrived; others are ignored."""
        await self._built.abort(list(requests))

    async def pause(self, *, clear_cache: bool) -> None:
        """Everything it has ends with all its tokens, nothing new starts; returns when the device is idle and the cache empty."""
        await self._built.pause_generation(mode="abort", clear_cache=clear_cache)

    async def resume(self) -> None:
        """From now on requests start."""
        await self._built.resume_generation()
        if await self._built.is_paused() or await self._built.is_sleeping():
            raise EngineError("vLLM was told to resume, and says that it is still paused or asleep")

    async def sleep(self) -> None:
        """Gives the memory of weights and cache back."""
        await self._built.sleep(level=2, mode="abort")
        if not await self._built.is_sleeping():
            raise EngineError("vLLM was told to sleep, and says that it is awake")

    async def wake(self, part: str) -> bool:
        """Takes the memory of one part, `weights` or `kv_cache`, again; whether all of it is there now. Then requests can start."""
        return bool(await self._built.wake_up([part]))

    async def reset_prefix_cache(self) -> None:
        """Forgets all that older weights have computed. Raises EngineError if it could not."""
        if not await self._built.reset_prefix_cache():
            raise EngineError("vLLM did not reset its prefix cache: blocks of it are still in use, though nothing is in flight")

    async def update(self, path: Path, names: Mapping[str, str], version: int) -> None:
        """Loads weights from a file by vLLM's own update session, `names` the model's name -> that in the file.

        An error leaves the model half loaded.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._built.start_weight_update()
        await self._built.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path), "names": dict(names)}))
        await self._built.finish_weight_update(weight_version=str(version))
        if (label := await self._built.get_weight_version()) != str(version):
            raise EngineError(f"vLLM was given version {version}, and says that it has {label}")

    async def checksums(self) -> dict[str, str]:
        """Digest of each parameter, in the form the kernels want, of all workers."""
        return {name: digest for worker in await self._built.compute_weight_checksums() for name, digest in worker.items()}

    def close(self) -> None:
        """Ends its processes, by force if need be, and the thread."""
        self._closing = True
        if self._thread.is_alive():
            try:
                self.call("shutdown", self._shut_down(), END_S)
            except EngineError as error:
                logger.warning("vLLM did not shut down: error=%s", error)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_S)
        for child in self._children:
            child.join(END_S)
            if child.is_alive():
                logger.warning("vLLM's process was killed: pid=%s", child.pid)
                child.kill()
                child.join(END_S)
        if not self._loop.is_running() and not self._loop.is_closed():
            self._loop.close()

    @property
    def _built(self) -> AsyncLLM:
        assert self._llm is not None, "a server is started before it is called"
        return self._llm

    async def _build(self) -> None:
        from vllm import AsyncEngineArgs
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
        from vllm.v1.engine.async_llm import AsyncLLM

        from services.engines.vllm_counter import token_counter

        arguments = dict(self._arguments) | {"weight_transfer_config": WeightTransferConfig(backend=FILE_TRANSFER)}
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[token_counter(self._count)])
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    def _watch(self) -> None:
        for child in self._children:
            self._loop.add_reader(child.sentinel, self._child_ended, child)

    def _child_ended(self, child: BaseProcess) -> None:
        self._loop.remove_reader(child.sentinel)
        if not self._closing and self._ended is not None:
            self._ended(f"vLLM's process {child.name} ({child.pid}) has ended with exit code {child.exitcode}")

    async def _shut_down(self) -> None:
        for child in self._children:
            self._loop.remove_reader(child.sentinel)
        if self._llm is not None:
            self._llm.shutdown(timeout=END_S / 2)


def _sampling_params(request: GenerateRequest) -> object:
    """Of one request. The seed differs with the tokens that are there already, so that a continued answer does not repeat its luck."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=(request.seed + 0x9E3779B97F4A7C15 * len(request.prefix_tokens)) & 0x7FFF_FFFF_FFFF_FFFF,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        max_tokens=request.max_new_tokens,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
