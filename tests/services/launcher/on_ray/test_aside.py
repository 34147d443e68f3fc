"""What Ray writes to the terminal by itself is in a file, and our own words are on the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.launcher.on_ray.aside import Aside
from tests.clusters import ROOT

WORDS = """
import logging, os, sys
from pathlib import Path
from services.launcher.on_ray.aside import Aside
aside = Aside()
with aside:
    os.write(2, b"[E 1 2] logging.cc:303: early\\n")
    print("ours", file=sys.stderr)
    aside.into(Path(sys.argv[1]) / "logs" / "ray.log")
    os.write(2, b"[E 1 2] rpc_client.h:204: late\\n")
    logging.getLogger("ray").error("of Python")
    os.system("echo of a child >&2")
    print("ours, too", file=sys.stderr)
print("after", file=sys.stderr)
os.write(2, b"also after\\n")
"""


def test_what_ray_says_by_itself_is_in_the_runs_logs_and_our_words_are_on_the_terminal(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run([sys.executable, "-c", WORDS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["ours", "ours, too", "after", "also after"]
    early, late, of_python, of_a_child = (tmp_path / "logs" / "ray.log").read_text().splitlines()
    assert (early, late, of_a_child) == ("[E 1 2] logging.cc:303: early", "[E 1 2] rpc_client.h:204: late", "of a child")
    assert of_python.endswith("of Python")


def test_nothing_happens_to_one_that_was_never_entered(tmp_path: Path) -> None:
    """As when there was no cluster to join."""
    aside = Aside()
    aside.into(tmp_path / "logs" / "ray.log")
    aside.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []
