"""What a service needs for direct transfers, made from what it was told when it started. In most runs that is nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bus.errors import SwingshiftError
from bus.log import BlobReader, Blobs
from services.config import RunConfig
from services.context import ServiceContext
from services.engines.protocol import Engine
from services.payloads import token_blob
from services.transfer.addresses import LOOPBACK, own_address
from services.transfer.choice import WAYS, Giver, Taker, offered, parts_of
from services.transfer.greeting import new_token
from services.transfer.outlet import Outlet, able
from services.transfer.taker import DirectTaker, way_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainersEnd:
    """Where a trainer is. `url`: the run's server; `placed`: the GPUs that it was given on a cluster, by their names there."""

    url: str
    machine: str
    placed: str = ""

    def seen_of(self, planned: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the planned GPUs that its process sees: of a trainer whose ranks are placed one by one, the first rank's."""
        return planned[: len(parts_of(self.placed))] if self.placed else planned


@contextlib.contextmanager
def handing_out(
    config: RunConfig, devices: Mapping[str, str], end: TrainersEnd, open_blobs: Callable[[], Blobs]
) -> Iterator[Outlet | None]:
    """The trainer's outlet, as long as this lasts; None if no replica of the run could take anything there. Raises ConfigError."""
    transports = able(offered(config.weights.transport, config.rollout.engine, devices))
    if not transports:
        yield None
        return
    token = new_token()
    giver = Giver(end.machine, end.seen_of(parts_of(devices["trainer"])), transports)
    host, far_host = (LOOPBACK, own_address(end.url)) if config.weights.direct_host == "auto" else (config.weights.direct_host, "")
    outlet = Outlet(giver, host, token, config.weights.direct_timeout_s, far_host=far_host)
    blobs = open_blobs()
    blobs.put(token_blob(), token)
    outlet.start()
    logger.info("weights are handed out: address=%s transports=%s", outlet.address, ",".join(transports))
    try:
        yield outlet
    finally:
        outlet.close()
        # It is worth nothing by now: not worth failing for. A successor may have put its own there.
        with contextlib.suppress(SwingshiftError):
            if blobs.get(token_blob()) == token:
                blobs.delete([token_blob()])


def make_taker(context: ServiceContext, engine: Engine, blobs: BlobReader, epoch: Callable[[], int]) -> DirectTaker | None:
    """A replica's end; None for an engine that takes nothing directly, or where only the retained copy was asked for."""
    ways, wanted = engine.direct, context.config.weights.transport
    if ways is None or not WAYS[wanted]:
        return None
    end = Taker(context.machine, parts_of(context.planned_device), ways.transports)
    limit_s = context.config.weights.direct_timeout_s
    return DirectTaker(context.name, epoch, lambda: blobs.get(token_blob()), way_of(wanted, end), end, ways.workers, limit_s)
