"""How both ends of a connection prove to each other that they belong to the run, without telling the token that only its services know.

replica ── nonce ──▶ trainer        proof = HMAC-SHA256(token, who ‖ both nonces ‖ replica ‖ epoch)
replica ◀── nonce, proof ── trainer
replica ── proof ──▶ trainer        neither proof can be used again, nor sent back
"""

from __future__ import annotations

import hmac
import secrets

from bus.errors import TransferError
from services.transfer.channel import LARGE, Channel
from services.transfer.messages import NONCE_BYTES, Challenge, Hello, Proof, Refused, Welcome, expected

TOKEN_BYTES = 32
GREETING_S = 5.0
"""How long each step of it may take."""


def new_token() -> bytes:
    """One that nobody can guess."""
    return secrets.token_bytes(TOKEN_BYTES)


def greet(channel: Channel, token: bytes, replica: str, epoch: int) -> None:
    """The replica's side. Raises TransferError if the other end is not this run's trainer, or does not want this replica."""
    hello = Hello(replica=replica, epoch=epoch, nonce=secrets.token_bytes(NONCE_BYTES))
    channel.send(hello, GREETING_S)
    challenge = expected(channel.receive(GREETING_S), Challenge)
    if not hmac.compare_digest(challenge.proof, _proof(token, "trainer", hello, challenge.nonce)):
        raise TransferError("whoever answers does not know this run's token: it is not the trainer, or one of another start")
    channel.send(Proof(proof=_proof(token, "replica", hello, challenge.nonce)), GREETING_S)
    expected(channel.receive(GREETING_S), Welcome)
    channel.longest = LARGE


def be_greeted(channel: Channel, token: bytes) -> Hello:
    """The trainer's side: who it is. Raises TransferError if it does not know the token."""
    hello = expected(channel.receive(GREETING_S), Hello)
    nonce = secrets.token_bytes(NONCE_BYTES)
    channel.send(Challenge(nonce=nonce, proof=_proof(token, "trainer", hello, nonce)), GREETING_S)
    proof = expected(channel.receive(GREETING_S), Proof)
    if not hmac.compare_digest(proof.proof, _proof(token, "replica", hello, nonce)):
        channel.send(Refused(reason="the token is not this run's"), GREETING_S)
        raise TransferError(f"somebody who calls himself replica {hello.replica!r} does not know the token")
    channel.longest = LARGE
    return hello


def _proof(token: bytes, who: str, hello: Hello, nonce: bytes) -> bytes:
    said = "\0".join((who, hello.nonce.hex(), nonce.hex(), str(hello.epoch), hello.replica))
    return hmac.digest(token, said.encode(), "sha256")
