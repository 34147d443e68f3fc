"""The ACL file of a shared server: a user for each role, with no more rights than its part of a run needs.

Whoever appends may write the log and `meta`; who only reads may write nothing but a question to the archiver. That an event comes from the
role it names is no matter of these rights: a trainer's user could append in the policy's name. What it cannot do is read, change or delete
what is not a run's, or what its role has no need for, and nobody can empty the server.

    swingshift acl DIR ─▶ DIR/users.acl (digests of the passwords)  DIR/ROLE (the passwords)      redis-server --aclfile DIR/users.acl
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from bus.keys import RUNS

READ = ("exists", "get", "hget", "hgetall", "hkeys", "hmget", "hscan", "hstrlen", "mget", "xrange", "xread", "xrevrange", "smembers")
CONNECT = ("ping", "select", "info")
SCRIPTS = ("eval", "evalsha")
APPEND = (*SCRIPTS, "hdel", "hset", "xadd")
ALIVE = (*SCRIPTS, "set", "del")
WRITE_PAYLOADS = ("multi", "eval", "strlen", "hincrby", "mset", "exec")
REMOVE_PAYLOADS = (*SCRIPTS, "strlen", "unlink", "hincrby")
TRIM = (*SCRIPTS, "hset", "xtrim")
ASK = ("rpush", "pexpire")
ANSWER = ("blpop", "set")
MEASURE = ("memory|usage",)
PURGE = (*SCRIPTS, "scan", "memory|usage", "unlink", "srem")

LOG = ("log", "meta")
HOLDS = (*LOG, "positions", "recall", "snapshots")
"""Of a service that reads the whole log: how far it is, what it asks the archiver for, and the state that its successor goes on from."""
RECALLED = "recall:*"
WATCHED = "alive:controller"
"""Whose loss every other service says."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Of one role: keys of a run by the end of their names (`*` stands for anything), and commands besides those for reading."""

    writes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    lists_runs: bool = False


ROLES: Mapping[str, Rights] = {
    "trainer": Rights((*HOLDS, "alive:trainer"), ("blob:sample:*", RECALLED, WATCHED), (*APPEND, *ALIVE, *ASK)),
    "rollouter": Rights(
        (*HOLDS, "inbox:*", "size", "alive:rollouter", "blob:*"), (RECALLED, WATCHED), (*APPEND, *ALIVE, *WRITE_PAYLOADS, *ASK),
    ),
    "replica": Rights(
        (*LOG, "size", "alive:replica:*", "blob:answer:*"), ("inbox:*", "blob:prompt:*", WATCHED), (*APPEND, *ALIVE, *WRITE_PAYLOADS),
    ),
    "controller": Rights((*HOLDS, "inbox:*", "alive:controller"), ("alive:*", RECALLED), (*APPEND, *ALIVE, *ASK)),
    "policy": Rights((*HOLDS, "alive:policy", "alive:policy:*"), (RECALLED, WATCHED), (*APPEND, *ALIVE, *ASK)),
    "archiver": Rights(
        (*HOLDS, RECALLED, "inbox:*", "size", "alive:archiver", "blob:*"), (WATCHED,),
        (*APPEND, *ALIVE, *REMOVE_PAYLOADS, *TRIM, *MEASURE, *ASK, *ANSWER),
    ),
    "monitor": Rights(
        (*LOG, "recall", "alive:monitor"), ("inbox:*", "positions", "size", "alive:*", RECALLED), (*APPEND, *ALIVE, *MEASURE, *ASK),
        lists_runs=True,
    ),
    "observer": Rights(
        ("recall",), (*LOG, "inbox:*", "positions", "size", "alive:*", RECALLED), (*MEASURE, *ASK), lists_runs=True,
    ),
    "operator": Rights(("*",), (), (*APPEND, *PURGE, *ASK), lists_runs=True),
    "supervisor": Rights(
        ("*",), (), (*APPEND, *ALIVE, *WRITE_PAYLOADS, *REMOVE_PAYLOADS, *TRIM, *MEASURE, *ASK, *ANSWER, "sadd"), lists_runs=True,
    ),
}  # fmt: skip
"""The supervisor's user is also that of all services that `swingshift run` starts, so it may do what they may. The observer has no role in
a run: it is for people who look (`status`, `tail`, `doctor`) and for health checks."""


def acl_file(passwords: Mapping[str, str], run: str = "*") -> str:
    """The file, with a user for each role of `passwords`. `run`: the one run that they may use, `*`: every one."""
    users = [user_line(role, password, run) for role, password in passwords.items()]
    return "\n".join(("user default off resetpass resetchannels -@all", *users, ""))


def user_line(role: str, password: str, run: str) -> str:
    """One user, named like the role."""
    rights = ROLES[role]
    start = f"{{swingshift:{run}}}:"
    patterns = [*_patterns("RW", start, rights.writes), *_patterns("R", start, rights.reads)]
    if rights.lists_runs:
        patterns.append(f"%{'RW' if '*' in rights.writes else 'R'}~{RUNS}")
    commands = dict.fromkeys((*CONNECT, *READ, *rights.commands))
    digest = sha256(password.encode()).hexdigest()
    return " ".join(("user", role, "on", f"#{digest}", "resetchannels", "-@all", *(f"+{name}" for name in commands), *patterns))


def _patterns(access: str, start: str, names: Sequence[str]) -> list[str]:
    return [f"%{access}~{start}{name}" for name in names]
