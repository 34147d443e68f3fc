"""The engine that runs a Hugging Face model in the replica's own process.

    replica's thread ──submit, abort, pause──▶ queue ──▶ generation thread: admit, step, step, admit, … ──▶ docket ──▶ poll

The generation thread is there from `start` to `close` and waits without using the processor while there is nothing to generate, so that
`pause`, `sleep` and `wake` start and stop no thread: a pause takes the time of one token. The lock is held only between two tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bus.errors import EngineError
from services.engines.config import EngineConfig
from services.engines.docket import Docket
from services.engines.embedded_batch import Batch
from services.engines.embedded_model import ServedModel, build_model
from services.engines.protocol import (
    EngineState,
    EngineStats,
    GenerateOutput,
    GenerateRequest,
    reason_unservable,
    require,
    require_started,
    require_weights,
)

logger = logging.getLogger(__name__)


class EmbeddedEngine:
    """Serves the model of `model_folder` (a Hugging Face config.json) on `device`. `Engine` says what the calls promise."""

    def __init__(self, config: EngineConfig, model_folder: Path, device: str = "cpu") -> None:
        self._config = config
        self._model_folder = model_folder
        self._device = device
        self._docket = Docket()
        self._state: EngineState = "asleep"
        self._queued: dict[str, GenerateRequest] = {}
        self._to_abort: set[str] = set()
        self._closing = False
        self._computing = False
        """The generation thread computes a token, without the lock."""
        self._busy_s = 0.0
        self._model: ServedModel | None = None
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Builds the model and starts the generation thread."""
        self._docket.check()
        if self._thread is not None:
            raise EngineError("the engine was started twice")
        self._model = build_model(self._model_folder, self._config, self._device)
        self._batch = Batch(self._model, self._config)
        self._thread = threading.Thread(target=self._generate, name="generation", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Takes memory for weights and cache."""
        with self._docket.changed:
            model = self._started()
            if self._state == "paused":
                return
            require("wake", self._state, "asleep")
        # Without the lock, so that stats and poll answer meanwhile: while nothing is in flight the generation thread touches nothing.
        model.wake()
        with self._docket.changed:
            self._state = "paused"

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies all weights in. The cache holds only what is in flight: nothing, or what is frozen, which keeps it."""
        with self._docket.changed:
            model = self._started()
            if self._state != "frozen":
                self._require_quiet("load_weights")
            elif self._batch is not None and model.version is not None:
                self._batch.end_spans(model.version)
        model.load(weights, version)

    @property
    def direct(self) -> None:
        """It takes weights from files only."""

    def open(self) -> None:
        """Admits requests."""
        with self._docket.changed:
            model = self._started()
            if self._state == "open":
                return
            require("open", self._state, "paused", "frozen")
            require_weights(model.ready, model.version)
            self._state = "open"
            self._docket.changed.notify_all()

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request, or answers at once why not."""
        with self._docket.changed:
            model = self._started()
            self._docket.add(request.request)
            if self._state != "open":
                self._docket.finish(GenerateOutput(request.request, "refused", error=f"the engine is {self._state}"))
            elif reason := reason_unservable(request, self._config.max_model_len, model.vocab_size):
                self._docket.finish(GenerateOutput(request.request, "error", error=reason))
            else:
                self._queued[request.request] = request
                self._docket.changed.notify_all()

    def abort(self, requests: Sequence[str]) -> None:
        """Ends queued ones at once, running ones after the token that is being computed."""
        with self._docket.changed:
            self._started()
            for request in requests:
                if self._queued.pop(request, None) is not None:
                    self._docket.finish(GenerateOutput(request, "aborted"))
                elif request in self._docket:
                    self._to_abort.add(request)
            self._docket.changed.notify_all()

    def poll(self, timeout_s: float) -> list[GenerateOutput]:
        """Outputs that are there, waiting at most so long for the first."""
        return self._docket.take(timeout_s)

    def pause(self) -> None:
        """Aborts all in flight and waits for the token that is being computed."""
        with self._docket.changed:
            self._started()
            require("pause", self._state, "open", "paused", "frozen")
            self._state = "paused"
            self._abort_queued()
            self._docket.changed.notify_all()
            self._docket.wait_until_empty(self._config.pause_timeout_s)
            self._docket.check()

    def freeze(self) -> None:
        """Waits for the token that is being computed; what is queued stays so."""
        with self._docket.changed:
            self._started()
            require("freeze", self._state, "open", "frozen")
            self._state = "frozen"
            timeout_s = self._config.pause_timeout_s
            if not self._docket.changed.wait_for(lambda: not self._computing, timeout_s):
                raise EngineError(f"the token that is being computed has not come after {timeout_s} s: kill the replica")
            self._docket.check()

    def sleep(self) -> None:
        """Frees weights and cache."""
        with self._docket.changed:
            model = self._started()
            if self._state == "asleep":
                return
            self._require_quiet("sleep")
            self._state = "asleep"
        model.sleep()

    def stats(self) -> EngineStats:
        """A look without waiting for anything but the lock."""
        with self._docket.changed:
            batch, model = self._batch, self._model
            return EngineStats(
                running=len(self._docket) - len(self._queued),
                queued=len(self._queued),
                generated_tokens=batch.generated_tokens if batch is not None else 0,
                state=self._state,
                version=model.version if model is not None else None,
                extra={
                    "busy_s": self._busy_s,
                    "steps": float(batch.steps if batch is not None else 0),
                    "prefills": float(batch.prefills if batch is not None else 0),
                    "memory_bytes": float(model.num_bytes if model is not None else 0),
                },
            )

    def close(self) -> None:
        """Aborts what is in flight, ends the thread, frees the memory."""
        with self._docket.changed:
            self._closing = True
            self._abort_queued()
            self._docket.changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._config.pause_timeout_s)
            if self._thread.is_alive():
                raise EngineError(f"the generation thread still runs after {self._config.pause_timeout_s} s: kill the process")
        with self._docket.changed:
            if self._model is not None:
                self._model.sleep()
            self._state = "asleep"
            self._docket.close()

    def _started(self) -> ServedModel:
        self._docket.check()
        return require_started(self._model)

    def _require_quiet(self, call: str) -> None:
        require(call, self._state, "paused")
        if len(self._docket) > 0:
            raise EngineError(f"{call} while {len(self._docket)} requests are in flight: the pause before it has failed")

    def _abort_queued(self) -> None:
        for request in self._queued:
            self._docket.finish(GenerateOutput(request, "aborted"))
        self._queued.clear()

    def _generate(self) -> None:
        """The generation thread. A failure ends it, answers everything in flight, and is raised by every later call."""
        try:
            with torch.inference_mode():
                while self._generate_token():
                    pass
        except Exception as error:  # the thread's outermost loop: recorded here, raised by the docket
            logger.exception("generation failed model=%s", self._model_folder)
            with self._docket.changed:
                self._queued.clear()
                self._computing = False
                self._docket.fail(f"{type(error).__name__}: {error}")

    def _generate_token(self) -> bool:
        """Waits for work, then computes one token for those that start, or for all that run. False when the engine closes."""
        batch, changed = self._batch, self._docket.changed
        assert batch is not None, "start makes the batch before the thread"
        with changed:
            changed.wait_for(self._has_work)
            self._carry_out_aborts(batch)
            if self._closing or self._is_frozen:
                return not self._closing
            chosen = batch.next_to_admit(self._queued)
            for request in chosen:
                del self._queued[request.request]
            self._computing = True
        started = time.monotonic()
        outputs = batch.admit(chosen) if chosen else batch.step() if len(batch) > 0 else []
        with changed:
            self._busy_s += time.monotonic() - started
            self._computing = False
            for output in outputs:
                self._docket.finish(output)
            if self._is_frozen:
                changed.notify_all()
        return True

    @property
    def _is_frozen(self) -> bool:
        return self._state == "frozen"

    def _has_work(self) -> bool:
        return self._closing or bool(self._to_abort if self._is_frozen else len(self._docket))

    def _carry_out_aborts(self, batch: Batch) -> None:
        all_end = self._closing or self._state not in ("open", "frozen")
        aborted = batch.abort_all() if all_end else batch.abort(self._to_abort) if self._to_abort else []
        # Between two tokens a request in flight is either queued or in the batch, so what is left here has ended by itself.
        self._to_abort.clear()
        for output in aborted:
            self._docket.finish(output)
