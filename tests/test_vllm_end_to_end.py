"""A whole run with vLLM, as a user starts it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bus.events import GenerationFinished, ReplicaAdded, ReplicaLost, StepDone, SwitchDone
from services.engines.vllm_processes import alive, descendants
from tests.services.engines.conftest import NEEDS_VLLM
from tests.test_end_to_end import recorded, steps_of, wait_until
from tests.vllm_runs import START_S, cores_of, output_of, running

pytestmark = [NEEDS_VLLM, pytest.mark.timeout(480)]


def test_a_run_with_vllm_trains_lends_agrees_with_the_trainer_is_verified_and_leaves_nobody(tmp_path: Path) -> None:
    with running(tmp_path, "vllm") as process:
        wait_until(lambda: process.poll() is not None or "step 1/12" in output_of(tmp_path), START_S)
        assert process.poll() is None, output_of(tmp_path)
        processes = descendants([process.pid])
        assert len(cores_of(processes)) == 2
        assert process.wait(120) == 0, output_of(tmp_path)
        assert not [other for other in processes if alive(other)]
    entries = recorded(tmp_path, "vllm")
    events = [entry.event for entry in entries]
    assert steps_of(entries) == list(range(1, 13))
    assert any(event.metrics["actor/loss"] for event in events if isinstance(event, StepDone))
    lends = [event.target for event in events if isinstance(event, SwitchDone)]
    assert "rollout" in lends, "nothing was lent"
    assert all(first != second for first, second in pairwise(lends))
    assert {event.replica for event in events if isinstance(event, ReplicaAdded)} == {"s0", "h0"}
    assert not [event for event in events if isinstance(event, ReplicaLost)]
    ended = [event for event in events if isinstance(event, GenerationFinished) and event.num_tokens]
    assert {"s0", "h0"} == {event.replica for event in ended}
    assert max(version for event in ended for version, _ in event.version_spans) >= 2
    summary = json.loads((tmp_path / "vllm" / "summary.json").read_text())
    assert summary["logprob_diff_same_version"] < 1e-3
    assert summary["disagreements"] == []
