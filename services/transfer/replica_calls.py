"""A replica's engine, called over the connection on which its transfer was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from bus.errors import TransferError
from services.transfer.channel import Channel
from services.transfer.messages import Call, Calls, Done, expected

SEND_S = 10.0


class ReplicaCalls:
    """`EngineCalls` of one transfer, which must be over at `deadline` (monotonic).

    `broken`: who is told that a call has failed while the sending end may be inside a collective that nothing ends any more.
    """

    def __init__(self, channel: Channel, deadline: float, broken: Callable[[str], None] | None) -> None:
        self._channel = channel
        self._deadline = deadline
        self._broken = broken
        self.started = False
        """Whether the engine has begun to change its weights."""

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        self._call("join", init_info)

    def start_weight_update(self) -> None:
        self.started = True
        self._call("start", {})

    def update_weights(self, update_info: dict[str, object]) -> None:
        self._call("receive", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish", {})

    def _call(self, call: Calls, info: dict[str, object]) -> None:
        try:
            self._channel.send(Call(call=call, info=info), SEND_S)
            expected(self._channel.receive(max(0.0, self._deadline - time.monotonic())), Done)
        except TransferError as error:
            if self._broken is not None and call in ("join", "receive"):
                self._broken(f"{call}: {error}")
            raise
