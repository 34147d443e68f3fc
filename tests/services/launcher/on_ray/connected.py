"""This process as a driver on the cluster of the tests, without the command line."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from services.launcher.on_ray.cluster import NAMESPACE, keeping_signals
from services.launcher.on_ray.placement import Bundle, Placement, Seat


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Until the block ends; nothing of Ray is left then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        before = dict(os.environ)
        with keeping_signals():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            with keeping_signals():
                ray.shutdown()
            for name in os.environ.keys() - before.keys():
                del os.environ[name]


def anywhere(*services: str, seats: dict[str, Seat] | None = None, bundles: tuple[Bundle, ...] = ()) -> Placement:
    """Services that need nothing, and some that are given a seat."""
    all_seats = {service: Seat(None) for service in services} | (seats or {})
    return Placement(bundles, "PACK", all_seats, ())
