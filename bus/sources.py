"""What services are called in the log, as the source of what they say: `trainer`, `replica:s0`."""

from __future__ import annotations

TRAINER = "trainer"
CONTROLLER = "controller"
POLICY = "policy"
REPLICA = "replica"
REPLICA_PREFIX = f"{REPLICA}:"
"""Before a replica's name."""
