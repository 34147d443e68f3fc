"""One vLLM with the event loop that it lives in, which is a thread; its engine core is a child process that ends with this one.

    replica's thread ──call──▶ loop's thread ──ZeroMQ──▶ engine core (child) ──▶ workers (with tensor parallelism)

Every call has a limit. One that does not end in time, or ends badly, leaves the server in an unknown state: its engine counts it as failed.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bus.errors import EngineError
from services.engines import vllm_processes
from services.engines.protocol import GenerateRequest
from services.engines.vllm_arguments import sampling_params, starting_environment
from services.engines.vllm_folder import Folder
from services.engines.vllm_loop import VllmLoop
from services.engines.vllm_plugin import FILE_TRANSFER
from services.engines.vllm_probe import check_installed
from services.engines.vllm_processes import dying_with_this_one

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

END_S = 10.0
"""How long its processes may take to be gone after they were killed, and a start that was cut short to notice."""
START_POLL_S = 0.1
SAY_THAT_THEY_KILL = ("vllm.v1.utils", "vllm.utils.system_utils")
"""Loggers of vLLM's that warn of what `close` asks for."""


class VllmServer:
    """Started once, closed once. Methods that are coroutines are to be run by `call`."""

    def __init__(self, arguments: Mapping[str, object], environment: Mapping[str, str] | None = None) -> None:
        self._arguments = arguments
        self._environment = environment or {}
        self._folder: Folder | None = None
        self._loop = VllmLoop()
        self._tokens = 0
        self._others: set[BaseProcess] = set()
        """This process's children that are none of its."""
        self._children: list[BaseProcess] = []
        self._processes: list[vllm_processes.Spawned] = []
        """Its children, and theirs."""
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
        """Its processes, the engine core first."""
        return [process.pid for process in self._processes]

    def start(self, timeout_s: float) -> None:
        """Returns when it can be called: awake, with meaningless weights. Raises EngineError."""
        self._others = set(multiprocessing.active_children())
        self._folder = Folder()
        self._loop.start()
        try:
            self._start(self._folder, timeout_s)
        except EngineError as error:
            why = self._folder.last_error()
            self.close()
            raise EngineError(f"{error}{why and f' ({why})'}") from error
        except BaseException:  # this process was told to end
            self.close()
            raise
        self.post(self._watch)

    def call(self, what: str, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        """Runs it on the loop. Raises EngineError when it does not end in time, or with any error."""
        return self._loop.call(what, coroutine, timeout_s)

    def interrupt(self) -> None:
        """The call that another thread waits for ends as failed, if it has not ended."""
        self._loop.interrupt()

    def post(self, action: Callable[[], object]) -> None:
        """Runs it on the loop, soon."""
        self._loop.post(action)

    def listen(self, ended: Callable[[str], None]) -> None:
        """Who is told, on the loop, when its processes end by themselves."""
        self._ended = ended

    async def generate(self, request: GenerateRequest, salt: str | None, added: Callable[[], Coroutine[object, object, None]]) -> object:
        """The final output of a request (vLLM's `CompletionOutput`); `added` is run once it can be aborted by its id."""
        from vllm.inputs.engine import tokens_input

        prompt = tokens_input([*request.prompt_tokens, *request.prefix_tokens], cache_salt=salt)
        queue = await self._built.add_request(request.request, prompt, sampling_params(request))
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

    async def freeze(self) -> None:
        """Nothing is scheduled any more, what is there stays; returns when the device is idle and all tokens so far have arrived."""
        await self._built.pause_generation(mode="keep", clear_cache=False)
        if not await self._built.is_paused():
            raise EngineError("vLLM was told to pause, and says that it goes on")

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
        await self.start_update()
        await self.receive({"way": "file", "info": {"path": str(path), "names": dict(names)}})
        await self.finish_update(version)

    async def join(self, way: Mapping[str, object]) -> str:
        """Has every worker make ready for one way to take weights; why it could not, empty if it could. Touches no weights."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        try:
            await self._built.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(way)))
        except Exception as error:  # noqa: BLE001  (a worker's error comes as vLLM likes; the weights are as they were)
            return f"{type(error).__name__}: {error}"
        return ""

    async def start_update(self) -> None:
        """Begins an update session: from here on the model is half loaded until it is finished."""
        await self._built.start_weight_update()

    async def receive(self, way: Mapping[str, object]) -> None:
        """Takes weights in a way that vllm_transfer.py knows."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._built.update_weights(WeightTransferUpdateRequest(update_info=dict(way)))

    async def finish_update(self, version: int) -> None:
        """Ends the session. Raises EngineError if vLLM does not say then that it has this version."""
        await self._built.finish_weight_update(weight_version=str(version))
        if (label := await self._built.get_weight_version()) != str(version):
            raise EngineError(f"vLLM was given version {version}, and says that it has {label}")

    async def checksums(self) -> dict[str, str]:
        """Digest of each parameter, in the form the kernels want, of all workers."""
        return {name: digest for worker in await self._built.compute_weight_checksums() for name, digest in worker.items()}

    def close(self) -> None:
        """Ends its processes, by force, and the thread."""
        self._closing = True
        segments = vllm_processes.shared_memory(self._processes)
        if self._loop.started:
            self._shut_down()
        for process in vllm_processes.end(self._processes, END_S):
            logger.error("vLLM's process was killed, and is still there: pid=%s", process.pid)
        self._loop.stop(END_S)
        vllm_processes.remove(segments)
        for child in self._children:
            child.join(END_S)
        if self._folder is not None:
            self._folder.remove()

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
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[token_counter(self._count)])
        except BaseException as error:
            if (client := _client_in(error)) is not None:
                _close_sockets(client)
            raise
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    def _start(self, folder: Folder, timeout_s: float) -> None:
        """Whatever becomes of it, the processes that it has started are this one's to end."""
        try:
            with dying_with_this_one(folder.path), starting_environment(self._environment, folder.path, folder.errors):
                check_installed()
                self.call("start", self._build(), timeout_s)
        finally:
            self._adopt()

    def _adopt(self) -> None:
        self._children = [child for child in multiprocessing.active_children() if child not in self._others]
        found = vllm_processes.descendants(child.pid for child in self._children if child.pid is not None)
        self._processes += [process for process in found if process not in self._processes]

    def _watch(self) -> None:
        for child in self._children:
            asyncio.get_running_loop().add_reader(child.sentinel, self._child_ended, child)

    def _child_ended(self, child: BaseProcess) -> None:
        asyncio.get_running_loop().remove_reader(child.sentinel)
        if not self._closing and self._ended is not None:
            why = self._folder.last_error() if self._folder is not None else ""
            self._ended(f"vLLM's process {child.name} ({child.pid}) has ended with exit code {child.exitcode}{why and f': {why}'}")

    def _end_start(self) -> None:
        """A start that failed, or was cut short: then it goes on in its thread, and may start processes until that has ended."""
        give_up = time.monotonic() + END_S
        while True:
            self._adopt()
            vllm_processes.end(self._processes, END_S)
            if self._loop.stop(START_POLL_S) or time.monotonic() > give_up:
                return

    def _shut_down(self) -> None:
        for name in SAY_THAT_THEY_KILL:
            logging.getLogger(name).setLevel(logging.ERROR)
        if self._llm is None:
            self._end_start()
            return
        try:
            self.call("shutdown", self._end_llm(self._llm), END_S)
        except EngineError as error:
            logger.warning("vLLM did not shut down: error=%s", error)

    async def _end_llm(self, llm: AsyncLLM) -> None:
        for child in self._children:
            asyncio.get_running_loop().remove_reader(child.sentinel)
        llm.shutdown(timeout=0)
        _close_sockets(llm.engine_core)


def _client_in(error: BaseException) -> MPClient | None:
    """vLLM's end of the connection to an engine core whose start failed: then only the frames of the error have it."""
    from vllm.v1.engine.core_client import MPClient

    owners = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((owner for owner in owners if isinstance(owner, MPClient)), None)


def _close_sockets(client: MPClient) -> None:
    """vLLM leaves their context to whoever collects garbage."""
    client.resources.ctx.destroy(linger=0)
