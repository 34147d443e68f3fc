"""Published weights that some replica cannot read where it is: how they come into the folder that all see.

Share ─┬─ in this machine's memory ─────── copied, beside the learner's work ──────────────┬─▶ WeightsShared
       └─ gone, maybe with a machine ───── made again by the redo after a restart ─────────┘
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bus.errors import WeightsError
from bus.events import RedoDiverged, WeightsPublished, WeightsShared
from services.shell import Facts, Shell
from services.trainer.core import TrainerCore
from services.trainer.shares import Share
from services.weights.store import SharedWeights, WeightStore

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class Sharing:
    """Of one incarnation. `again`: has a request performed by the thread that owns the learner."""

    def __init__(self, core: TrainerCore, store: WeightStore, again: Callable[[Share], None]) -> None:
        self._core = core
        self._store = store
        self._again = again
        self._shell: Shell | None = None
        self._gone: tuple[WeightsPublished, ...] = ()

    def recovered(self, shell: Shell) -> None:
        """What is gone is found out once: while this process lives, nobody else removes what replicas need."""
        self._shell = shell
        self._gone = tuple(weights for weights in self._core.shares.needed if self._store.find(weights.uri) == "gone")
        for weights in self._gone:
            logger.warning("published weights are gone, the redo makes them again: version=%d uri=%s", weights.version, weights.uri)

    def requests(self) -> list[Share]:
        """To make again what is gone, as soon as the devices are home, whether or not a replica waits for it."""
        needed = self._core.shares.needed
        return [self._core.shares.of(weights) for weights in self._gone if self._core.home and weights in needed]

    def begin(self, request: Share) -> bool:
        """Begins it, if that takes no learner."""
        if self._store.find(request.weights.uri) == "gone":
            return False
        threading.Thread(target=self._copy, args=(request,), name="share-weights", daemon=True).start()
        return True

    def wanted(self) -> dict[int, WeightsPublished]:
        """Step -> the publication that is gone and that the weights after this step are."""
        known = self._core.publications
        return {known[weights.version][0]: weights for weights in self._gone if known.get(weights.version, (0, None))[1] == weights}

    def put_back(self, weights: WeightsPublished, tensors: Mapping[str, torch.Tensor]) -> Facts:
        """Writes these again, which they are; what the log is to be told of it."""
        shared = self._store.put_back(weights.uri, tensors)
        self._gone = tuple(other for other in self._gone if other != weights)
        logger.info("published weights are back: version=%d uri=%s", weights.version, shared.uri)
        return [(_fact(weights, shared), self._core.shares.of(weights).cause)] if weights.machine else []

    def settle(self, request: Share, facts: Facts) -> Facts:
        """What is to be said after the redo, which had `facts`. Raises WeightsError for weights that it could not make again."""
        weights = request.weights
        told = {(event.version, event.revision) for event, _ in facts if isinstance(event, WeightsShared)}
        if (weights.version, weights.revision) in told or weights not in self._core.shares.needed:
            return []
        if self._store.find(weights.uri) != "gone":
            self.begin(request)
            return []
        if any(isinstance(event, RedoDiverged) and event.version == weights.version for event, _ in facts):
            return []
        if weights != self._core.books.publication:
            logger.warning("an evaluation will not take place: weights are gone and not made again: version=%d", weights.version)
            return []
        raise WeightsError(
            f"weights {weights.uri} are gone, and no checkpoint that can be read is as old as they are: go back to a step that has one "
            "with --from-step"
        )

    def _copy(self, request: Share) -> None:
        assert self._shell is not None
        weights = request.weights
        try:
            if self._store.find(weights.uri) == "folder":
                shared: SharedWeights | None = SharedWeights(weights.uri, weights.num_bytes, 0.0)
            else:
                shared = self._store.share(weights.uri)
            if shared is None:
                self._again(request)
            else:
                self._shell.post([(_fact(weights, shared), request.cause)])
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self._shell.fail(error)


def _fact(weights: WeightsPublished, shared: SharedWeights) -> WeightsShared:
    return WeightsShared(
        version=weights.version, revision=weights.revision, uri=shared.uri, num_bytes=shared.num_bytes, seconds=shared.seconds
    )
