"""What a terminal shows while data is read: nothing of what is quick, how far it is of what takes longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.screen import TerminalScreen

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("seconds", "words"), [(0.5, ""), (1.5, "reading data.train_files 1024 prompts")])
def test_reading_is_shown_when_it_takes_over_two_seconds(capsys: pytest.CaptureFixture[str], seconds: float, words: str) -> None:
    times = iter(range(100))
    screen = TerminalScreen(lambda: next(times) * seconds)
    screen.reading("data.train_files", 512)
    screen.reading("data.train_files", 1024)
    screen.end()
    assert " ".join(capsys.readouterr().out.split()) == words


def test_planning_and_the_prompts_of_files_need_neither_torch_nor_transformers() -> None:
    probe = "import sys, services.plan, services.prompts; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0
