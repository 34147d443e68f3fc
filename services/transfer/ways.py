"""How a replica gets the weights that it was told of: straight from the trainer's process where that goes, else the retained copy.

WakeRequested, WeightUpdateRequested ──fetch──▶ Ready ──load_into(engine)──▶ Loaded
                                       the engine may go on serving   paused or frozen
"""

from __future__ import annotations

from typing import Protocol

from bus.errors import EngineError, TransferError
from services.engines.protocol import Engine
from services.transfer.taker import DirectTaker, Incoming
from services.weights.fetcher import Loaded, Notice, WeightFetcher


class Ready(Protocol):
    """Weights of one notice, as far as they can be had before the engine pauses."""

    def load_into(self, engine: Engine) -> Loaded:
        """Gives them to an engine that takes weights now. Raises EngineError, WeightsError."""


class WeightWays:
    """Of one incarnation of one replica. `direct`: None where nothing but the retained copy is ever taken."""

    def __init__(self, retained: WeightFetcher, direct: DirectTaker | None) -> None:
        self._retained = retained
        self._direct = direct

    def fetch(self, notice: Notice) -> Ready:
        """The weights of a notice. Raises WeightsError when they cannot be had in any way."""
        if self._direct is not None and (incoming := self._direct.begin(notice)) is not None:
            return _Direct(notice, incoming, self._direct, self._retained)
        return self._retained.fetch(notice)

    def close(self) -> None:
        """Gives back what it holds."""
        if self._direct is not None:
            self._direct.close()
        self._retained.close()


class _Direct:
    def __init__(self, notice: Notice, incoming: Incoming, direct: DirectTaker, retained: WeightFetcher) -> None:
        self._notice = notice
        self._incoming = incoming
        self._direct = direct
        self._retained = retained

    def load_into(self, engine: Engine) -> Loaded:
        ways = engine.direct
        assert ways is not None, "nothing is begun for an engine that takes nothing directly"
        try:
            ways.load(self._incoming, self._notice.version)
        except TransferError as error:
            self._direct.give_up(f"{self._incoming.transport} did not come about: {error}")
            return self._retained.fetch(self._notice).load_into(engine)
        except EngineError:
            self._direct.close()
            raise
        return Loaded(self._incoming.transport, self._incoming.num_bytes)
