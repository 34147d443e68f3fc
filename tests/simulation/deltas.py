"""Changes of weights: some publications have them, some are torn, and replicas take them if they have what these are of."""

from __future__ import annotations

from random import Random

from bus.events import WakeRequested, WeightsDelta, WeightUpdateRequested
from tests.simulation.directs import Directs

WHOLE_BYTES = 100
DELTA_BYTES = 7


class Deltas:
    """Those of one run. Randomness of its own leaves the rest of a seed as it is."""

    def __init__(self, run: str) -> None:
        self._random = Random(f"deltas of {run}")
        self._share = self._random.choice((0.0, 0.7, 1.0))
        self.torn = self._random.choice((0.0, 0.3))
        self._changes: dict[str, tuple[str, str]] = {}
        """URI -> digests of the weights that they are of, and of those that they give."""

    def publish(self, base: tuple[int, str] | None, version: int, digest: str) -> WeightsDelta | None:
        """Beside `version`, against what this trainer published before, if it did."""
        if base is None or self._random.random() >= self._share:
            return None
        uri = f"w{version}.delta"
        self._changes[uri] = (base[1], digest)
        return WeightsDelta(base_version=base[0], base_revision=0, uri=uri, num_bytes=DELTA_BYTES)

    def apply(self, uri: str, digest: str) -> str | None:
        """Digest of what becomes of the weights `digest`; None: the changes cannot be read."""
        base, new = self._changes[uri]
        if self._random.random() < self.torn:
            return None
        return new if base == digest else "neither the old nor the new ones"


class HeldWeights:
    """What one incarnation of a replica has."""

    def __init__(self, deltas: Deltas, directs: Directs) -> None:
        self._deltas = deltas
        self._directs = directs
        self._held: tuple[int, int, str] | None = None
        """(version, revision, digest)"""

    def fetch(self, event: WakeRequested | WeightUpdateRequested) -> tuple[str, int]:
        """How they came, and in how many bytes."""
        if self._directs.come(event.direct):
            # They are on the devices only: what changes would be written over is still what it was.
            return "nccl", WHOLE_BYTES
        held, delta = self._held, event.delta
        self._held = (event.version, event.revision, event.digest)
        if delta is None or held is None or held[:2] != (delta.base_version, delta.base_revision):
            return "shm", WHOLE_BYTES
        made = self._deltas.apply(delta.uri, held[2])
        assert made in (None, event.digest), f"the changes in {delta.uri} gave {made}"
        return ("shm", WHOLE_BYTES + DELTA_BYTES) if made is None else ("delta", DELTA_BYTES)
