"""The digest that runs through a log, as the append script of the Redis log computes it, too.

    chain(n) = sha1_hex(chain(n-1) LF position LF kind LF version LF source LF epoch LF derived LF cause LF at LF body)

SHA-1 because it is the one digest that Redis offers to scripts. It finds accidents and edits by hand; it is no signature.
"""

from __future__ import annotations

from hashlib import sha1

GENESIS = ""
"""The chain before the first entry."""


def link(
    previous: str, position: int, kind: str, version: int, source: str, epoch: int, derived: int, cause: int, at: int, body: bytes
) -> str:
    """The chain value of an entry, given that of the entry before it. `derived` is 0 or 1, or a bool."""
    head = f"{previous}\n{position}\n{kind}\n{version}\n{source}\n{epoch}\n{+derived}\n{cause}\n{at}\n"
    return sha1(head.encode() + body, usedforsecurity=False).hexdigest()
