"""The process that hands out weights, beside the trainer: what goes wrong between devices may end it, and never touches the trainer.

    trainer ──standard input: one JSON object a line──▶ this process ◀──TCP── replicas
              first {token, devices, transports, …}, then one {version, revision, uri, digest} a publication; its end is the end
    trainer ◀──standard output── {replica: reason}, if a transfer to that one is this process's end

A transfer may hang inside a collective, hold the interpreter's lock, or be in the way of a device's other streams. It reads publications
from their files, so it cannot see live tensors at all. It takes a CUDA context on the trainer's first GPU once the first replica has come.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from bus.errors import TransferError, WeightsError
from bus.events.base import Frozen
from services.logs import log_to_stderr
from services.places import published_file
from services.transfer.endpoint import Endpoint, Publication
from services.transfer.ipc_sender import IpcSender
from services.transfer.messages import Take
from services.transfer.nccl_sender import NcclSender
from services.transfer.senders import GlooSender, MakeSender, stay_on_this_machine

logger = logging.getLogger(__name__)

LOST = 5
"""Exit code when only the end of the process could end a transfer."""


class Settings(Frozen):
    """trainer -> this process: its first line."""

    descriptor: int
    """Of the socket that listens."""
    token: str
    devices: tuple[str, ...]
    """The trainer's, as planned; the first one is this process's GPU 0."""
    transports: tuple[str, ...]
    limit_s: float
    struck: dict[str, str] = Field(default_factory=dict)
    """Replica -> why it gets nothing here: a transfer to it was the end of a process before this one."""


class Announcement(Frozen):
    """trainer -> this process: further lines."""

    version: int
    revision: int
    uri: str
    digest: str


def main() -> None:
    """Serves until its standard input ends."""
    log_to_stderr()
    settings = Settings.model_validate_json(sys.stdin.readline())
    listener = socket.socket(fileno=settings.descriptor)
    stay_on_this_machine(listener.getsockname()[0])
    token = bytes.fromhex(settings.token)
    endpoint = Endpoint(listener, token, makers(settings), _end_as_lost, settings.limit_s, settings.struck)
    endpoint.start()
    if "nccl" in settings.transports:
        # It takes many seconds, and the first replica is not to wait for it.
        threading.Thread(target=_load_nccl, name="nccl", daemon=True).start()
    for line in sys.stdin:
        publication = read(line)
        if publication is not None:
            endpoint.publish(publication)
    # Whatever hangs must not keep it.
    os._exit(0)


def makers(settings: Settings) -> Mapping[str, MakeSender]:
    """What makes the sender of each transport that is offered."""

    def ipc(take: Take) -> IpcSender:
        return IpcSender([settings.devices.index(device) for device in take.devices if device in settings.devices])

    known: Mapping[str, MakeSender] = {"nccl": lambda _: NcclSender(), "ipc": ipc, "gloo": lambda _: GlooSender()}
    return {transport: known[transport] for transport in settings.transports}


def read(line: str) -> Publication | None:
    """The publication of an announcement, mapped from its file. None if it is gone or torn: then there is nothing to hand out.

    Its digest is not computed again: the file is the one that the trainer has just written.
    """
    try:
        told = Announcement.model_validate_json(line)
        return Publication(told.version, told.revision, told.digest, load_file(published_file(told.uri)))
    except (ValidationError, WeightsError, OSError, SafetensorError) as error:
        logger.warning("weights cannot be handed out: line=%s error=%s", line.strip(), error)
        return None


def _load_nccl() -> None:
    try:
        NcclSender().prepare()
    except TransferError as error:
        logger.warning("no weights will come by nccl: %s", error)


def _end_as_lost(replica: str, reason: str) -> None:
    logger.error("ends, for a transfer cannot be ended otherwise: replica=%s reason=%s", replica, reason)
    # For the trainer, which starts the next process with it.
    os.write(sys.stdout.fileno(), (json.dumps({replica: reason}) + "\n").encode())
    logging.shutdown()
    os._exit(LOST)


if __name__ == "__main__":
    main()
