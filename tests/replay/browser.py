"""Opens a page in headless Chromium, and tells what came of it: its elements after the scripts ran, and what they complained of."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)  # fmt: skip
TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class Opened:
    """A page after its scripts ran."""

    dom: str
    complaints: list[str]
    """What was written to the console: errors, warnings, and anything else."""

    @property
    def shown(self) -> str:
        """Its elements without scripts and styles."""
        return re.sub(r"<(script|style)\b.*?</\1>", "", self.dom, flags=re.DOTALL)

    def count(self, pattern: str) -> int:
        """How often a regular expression is found in its elements."""
        return len(re.findall(pattern, self.shown))


def chromium() -> str:
    """The browser. Fails where there is none, for a page that was not opened is not tested."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.fail("no Chromium is on the PATH: `make browser` installs it")
    return found


def open_page(page: str, folder: Path, script: str = "", address: str = "", width: int = 1400, dark: bool = False) -> Opened:
    """Opens a page of this source, with a script of the test's own at its end; writes into `folder`."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>") if script else page, encoding="utf-8")
    looks = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [
        chromium(), *FLAGS, *looks, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1000", "--dump-dom",
        f"{path.absolute().as_uri()}{address}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return Opened(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])
