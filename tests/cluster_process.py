"""A Ray cluster whose nodes are processes of this machine, kept by a process of its own: `python -m tests.cluster_process`.

    tests ──(lines of JSON: add, remove, where, …)──▶ this process ──▶ the nodes' processes
                                                          └── its input ends, however the tests end ─▶ the nodes end, too

Apart from the tests, so that none of Ray's threads, handlers and files is theirs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress

from tests.serving import children

HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 5,
}
"""A node is dead after about two seconds, not fifteen; a busy one is not taken for dead."""
STORE_BYTES = 80 * 1024 * 1024


class Nodes:
    """The cluster, by the names of its nodes."""

    def __init__(self, head: str, arguments: dict[str, object]) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**self._usual(head), **arguments, "include_dashboard": False, "_system_config": HEALTH},
        )
        self._nodes = {head: self._cluster.head_node}
        self._frozen: dict[str, list[int]] = {}

    @property
    def address(self) -> str:
        """Where drivers reach it."""
        return str(self._cluster.address)

    def add(self, name: str, arguments: dict[str, object]) -> str:
        """Starts a node; returns its id when the cluster knows it."""
        if name not in self._nodes:
            self._nodes[name] = self._cluster.add_node(**{**self._usual(name), **arguments})
        return str(self._nodes[name].node_id)

    def remove(self, name: str) -> str:
        """Kills all processes of a node but its actors', which end when they miss it."""
        node = self._nodes.pop(name)
        for pid in self._frozen.pop(name, []):
            signal_to(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)

    def kill_raylet(self, name: str) -> str:
        """Kills what manages a node, and nothing else of it."""
        self._nodes[name].kill_raylet()
        return str(self._nodes[name].node_id)

    def freeze(self, name: str) -> str:
        """Stops a node as if it hung: nothing of it answers, and nothing of it ends."""
        raylet = self._nodes[name].all_processes["raylet"][0].process.pid
        self._frozen[name] = [raylet, *descendants(raylet)]
        for pid in self._frozen[name]:
            signal_to(pid, signal.SIGSTOP)
        return str(self._nodes[name].node_id)

    def states(self) -> dict[str, str]:
        """Id of each node that there ever was -> whether the cluster believes in it."""
        return {node["NodeID"]: "alive" if node["Alive"] else "dead" for node in self._cluster.global_state.node_table()}

    def where(self) -> dict[str, str]:
        """Name of each actor that is alive -> the name of its node."""
        names = {str(node.node_id): name for name, node in self._nodes.items()}
        actors = self._cluster.global_state.actor_table(None).values()
        return {actor["Name"]: names.get(actor["Address"]["NodeID"], "") for actor in actors if actor["State"] == "ALIVE" and actor["Name"]}

    def close(self) -> None:
        """Ends every node."""
        for name in list(self._frozen):
            self.remove(name)
        self._cluster.shutdown()

    @staticmethod
    def _usual(name: str) -> dict[str, object]:
        resources = {name: 100.0}
        return {"num_cpus": 2, "resources": resources, "object_store_memory": STORE_BYTES}


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and that these have."""
    found = children(pid)
    return [*found, *(other for child in found for other in descendants(child))]


def signal_to(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> int:
    """Answers each line with one; the first line is {"address": …}."""
    # Short, for the nodes' sockets lie in it, and a socket's path has at most 107 characters.
    folder = tempfile.mkdtemp(prefix="rc", dir="/tmp")
    os.environ["RAY_TMPDIR"] = folder
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    nodes = None
    try:
        first = json.loads(sys.stdin.readline())
        nodes = Nodes(first["name"], first["arguments"])
        answers.write(json.dumps({"address": nodes.address, "node_id": nodes.add(first["name"], {})}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(obey(nodes, json.loads(line))) + "\n")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if nodes is not None:
            nodes.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def obey(nodes: Nodes, request: dict[str, object]) -> dict[str, str]:
    """Does what one line asks for; returns the node's id, or where actors are."""
    name, arguments = request.get("name", ""), request.get("arguments", {})
    assert isinstance(name, str)
    assert isinstance(arguments, dict)
    match request["do"]:
        case "add":
            return {"node_id": nodes.add(name, arguments)}
        case "remove":
            return {"node_id": nodes.remove(name)}
        case "freeze":
            return {"node_id": nodes.freeze(name)}
        case "kill_raylet":
            return {"node_id": nodes.kill_raylet(name)}
        case "states":
            return nodes.states()
        case "where":
            return nodes.where()
        case other:
            raise ValueError(f"unknown request {other!r}")


if __name__ == "__main__":
    # Ray answers SIGTERM with its own end; here it is a reason to end the nodes first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
