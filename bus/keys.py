"""Every Redis key of swingshift, and why it is there.

All keys of a run share the braces around its id, so on a cluster they lie in one slot and one script call may touch them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bus.errors import ConfigError

RUNS = "swingshift:runs"
"""Set of run ids: which runs this server may have, so that listing them needs no scan. In a slot of its own; only for listing."""

_RUN_ID = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,63}")


def check_run_id(run: str) -> str:
    """Returns `run`. Raises ConfigError for an id that cannot be part of a key and of a folder's name."""
    if not _RUN_ID.fullmatch(run) or run in {".", ".."}:
        raise ConfigError(f"{run!r} is no run id: use 1 to 64 of the characters A-Z a-z 0-9 . _ -, the first of them no -")
    return run


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run."""

    run: str

    def __post_init__(self) -> None:
        check_run_id(self.run)

    @property
    def log(self) -> str:
        """Stream, one item an entry with id `POSITION-0`: the order of everything. Dense, so a lost entry shows as a gap."""
        return f"{{swingshift:{self.run}}}:log"

    def former_log(self, log_id: str) -> str:
        """Stream: entries of a log that was replaced by one made from the recording, as far as they were not those of the recording."""
        return f"{{swingshift:{self.run}}}:log:{log_id}"

    @property
    def meta(self) -> str:
        """Hash: what the append script checks and counts.

        log, position, chain   identity of the log, and position and chain of its newest entry
        ended                  position of RunEnded, once it is there
        epoch:SOURCE           newest incarnation of a source; lower ones are fenced
        answer:CLIENT          `counter first-position epoch` of a client's last append: the answer to its retry
        clients                how many clients have ever appended
        client:NUMBER          one of the newest of them, by which the answer of the oldest can be forgotten
        inbox:REPLICA          position of the newest entry mirrored for a replica: the list of the inboxes
        trimmed:REPLICA        position of the newest entry that was trimmed from an inbox
        """
        return f"{{swingshift:{self.run}}}:meta"

    @property
    def prefix(self) -> str:
        """What all keys of the run begin with. No character of it means anything in a server's patterns."""
        return f"{{swingshift:{self.run}}}:"

    @property
    def size(self) -> str:
        """Hash: `payloads` and `bytes`, how many payloads there are and what they take; the scripts that write and remove them count."""
        return f"{{swingshift:{self.run}}}:size"

    @property
    def positions(self) -> str:
        """Hash of consumer -> position up to which it needs nothing any more; the janitor trims behind the lowest essential one."""
        return f"{{swingshift:{self.run}}}:positions"

    @property
    def snapshots(self) -> str:
        """Hash of source -> its core's newest snapshot: the archiver copies it, a successor begins from it."""
        return f"{{swingshift:{self.run}}}:snapshots"

    @property
    def recall(self) -> str:
        """List: what late readers without a recording ask the archiver for. Passes when nobody takes it."""
        return f"{{swingshift:{self.run}}}:recall"

    def recalled(self, client: str) -> str:
        """String with a time to live: the archiver's answer to one such reader."""
        return f"{{swingshift:{self.run}}}:recall:{client}"

    def inbox(self, replica: str) -> str:
        """Stream of the entries for one replica, same items as in the log, so that a replica need not read the whole log."""
        return f"{{swingshift:{self.run}}}:inbox:{replica}"

    def blob(self, name: str) -> str:
        """String: a payload, kept out of the log so that readers who do not need it do not get it."""
        return f"{{swingshift:{self.run}}}:blob:{name}"

    def alive(self, service: str) -> str:
        """String with a time to live, value the epoch: the service's process is there, however long its current work takes."""
        return f"{{swingshift:{self.run}}}:alive:{service}"
