"""What has no model loads none of the libraries for models, which take seconds and hundreds of megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from services.entry import SERVICES

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "tokenizers", "jinja2", "numpy", "pyarrow")

CYCLE = """
from pathlib import Path
from bus.events import WakeRequested
from services.learner.scripted import ScriptedLearner
from services.weights.fetcher import WeightFetcher
from services.weights.store import WeightStore
folder = Path(sys.argv[1])
learner = ScriptedLearner()
notice = WeightStore("run", "file", folder).publish(learner.weights(), 0, 0, 1)
asked = WakeRequested(replica="replica:r0", epoch=1, swing=1, version=0, revision=0, uri=notice.uri, digest=notice.digest)
assert bytes(WeightFetcher(folder).fetch(asked).weights.later["digest"].plain().content) == bytes(learner.weights().later["digest"].content)
learner.save(folder / "checkpoint")
ScriptedLearner().load(folder / "checkpoint")
"""


def loaded_by(code: str, *arguments: str) -> list[str]:
    """Those of `HEAVY` that a process has loaded after it ran this."""
    script = f"import sys\n{code}\nsys.stdout.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_services_start_without_torch() -> None:
    shells = ", ".join(f"services.{service}.shell" for service in SERVICES)
    assert loaded_by(f"import services.entry, {shells}, services.engines.scripted") == []


def test_scripted_weights_are_published_fetched_saved_and_loaded_without_torch(tmp_path: Path) -> None:
    assert loaded_by(CYCLE, str(tmp_path)) == []


def test_the_command_line_starts_without_torch() -> None:
    commands = ", ".join(f"services.cli.{name}" for name in ("run", "serve", "status", "tail", "record", "stop", "plan", "policy"))
    assert loaded_by(f"import swingshift, replay.cli, {commands}") == []
