"""The classes of a device's time. They exclude each other: of several things at a time, the first of this list is the class."""

from __future__ import annotations

from typing import Literal, get_args

Class = Literal[
    "training",  # a step, from its batch to its end
    "publishing",  # weights, at the end of a cycle
    "checkpoint",  # writing one
    "evaluating",  # a replica that is pinned for an evaluation
    "generating",  # a replica with requests in flight
    "updating",  # a replica that loads newer weights
    "swinging",  # the devices change hands
    "starting",  # an engine that is not up yet
    "waiting",  # granted, and fewer samples ready than a step needs
    "paused",  # no request in flight, and the staleness limit or the memory budget lets none begin
    "idle",  # anything else
    "lost",  # the process is gone
]

CLASSES: tuple[Class, ...] = get_args(Class)
