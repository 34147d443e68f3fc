"""Every command in the README and the docs is run here, in their order, as a newcomer would; every link leads somewhere.

Commands are the lines of indented or fenced blocks that begin with `make`, `.venv/bin/` or `.venv-vllm/bin/`; of the last, runs are only
planned. What stands for something of the reader's (`RUN`, `CONFIG.yaml`, `HOST`, `PASSWORD`, …) is filled in from `Reader`; a command with
another such word fails, so that none is skipped.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config_reference import names, reference
from tests.bus.servers import running
from tests.conftest import debian_binary
from tests.serving import QUIET, SCRIPTED

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")), "CONTRIBUTING.md")
COMMAND = re.compile(r"^(?: {4}|)(?:\$ )?((?:make |\.venv(?:-vllm)?/bin/).*)$")
TIMEOUT_S = 240


ON_VLLM = ".venv-vllm/bin/"
FAILS = "exit status 1"
"""In the comment of a command that is meant to end so."""


def commands(page: str) -> list[str]:
    """The commands of a page, without comments but for `FAILS`."""
    found, fenced = [], False
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        match = COMMAND.match(line)
        if match and (fenced or line.startswith("    ")):
            command = shlex.join(shlex.split(match.group(1), comments=True))
            found.append(f"{command} # {FAILS}" if FAILS in match.group(1) else command)
    return found


def test_the_settings_page_is_the_models_own() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == reference(), "make it anew: .venv/bin/python -m services.config_reference > docs/settings.md"


def test_the_table_for_users_of_verl_names_settings_that_exist() -> None:
    known = set(names())
    rows = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", row)]
    assert len(named) > 20
    assert [name for name in named if name not in known and not name.startswith("policy.params.")] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_of_the_project(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    for command in commands(page):
        if command.startswith("make "):
            subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, check=True, capture_output=True, timeout=60)


class Reader:
    """Somebody who follows the pages in a folder of their own, on a machine with a password-protected server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = url
        self._run = f"r{secrets.token_hex(3)}"
        self._serving: list[subprocess.Popen[str]] = []
        (folder / "CONFIG.yaml").write_text(SCRIPTED)
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "tests").symlink_to(ROOT / "tests")

    def follow(self, command: str) -> None:
        """Runs a command. What serves, or ends with `&`, goes on in the background; everything else has to end well."""
        words = [self._fill_in(word) for word in shlex.split(command, comments=True)]
        goes_on = words[-1] == "&"
        program = Path(words[0]).name
        if words[0].startswith(ON_VLLM) and words[1] == "run":
            words.append("--dry-run")
        start = [sys.executable, "-m", "swingshift"] if program == "swingshift" else [sys.executable]
        arguments = words[1:-1] if goes_on else words[1:]
        process = subprocess.Popen(
            [*start, *arguments], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=QUIET | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        if goes_on:
            self._wait_until_it_runs(process)
        if goes_on or words[1:2] == ["serve"]:
            self._serving.append(process)
        else:
            self._expect_success(command, process)

    def _wait_until_it_runs(self, process: subprocess.Popen[str]) -> None:
        """A reader types the next command when this one says that something happens."""
        assert process.stdout is not None
        said = ""
        while "decides from here on" not in said:
            line = process.stdout.readline()
            assert line, f"it ended before it ran:\n{said}"
            said += line

    def _fill_in(self, word: str) -> str:
        shared = "redis://:PASSWORD@HOST:6379"
        for placeholder, value in ((shared, self._url), ("RUN", self._run), ("FILE", str(ROOT / "tests/golden/policy_decisions.json"))):
            word = word.replace(placeholder, value) if word != "CONFIG.yaml" else word
        assert word == "CONFIG.yaml" or not re.search(r"\b[A-Z]{3,}\b", word.replace(self._url, "")), f"{word} stands for something unknown"
        return word

    def _expect_success(self, command: str, process: subprocess.Popen[str]) -> None:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == (1 if command.endswith(FAILS) else 0), f"{command}\nended with {process.returncode}:\n{output[-3000:]}"

    def finish(self) -> None:
        """Services that were started one by one end with their run."""
        for process in self._serving:
            self._expect_success(shlex.join(map(str, process.args if isinstance(process.args, list) else [])), process)

    def close(self) -> None:
        """Ends what is left."""
        for process in self._serving:
            if process.poll() is None:
                process.kill()
            process.communicate()


def test_every_setting_says_what_it_means() -> None:
    assert [line for line in reference().splitlines() if line.endswith("|  |")] == []


READ = [
    (page, command)
    for page in PAGES
    for command in commands(page)
    if command.startswith((".venv/bin/", ON_VLLM)) and page != "CONTRIBUTING.md"
]


def test_every_command_of_the_pages_does_what_they_say(tmp_path: Path, locked_server: str) -> None:
    reader = Reader(tmp_path, locked_server)
    try:
        for _, command in READ:
            reader.follow(command)
        reader.finish()
    finally:
        reader.close()
    assert (tmp_path / "runs" / "own-trained" / "config.json").is_file()
    assert (tmp_path / "secrets" / "users.acl").is_file()
    assert (tmp_path / "report.html").is_file()


@pytest.fixture
def locked_server(tmp_path: Path) -> Iterator[str]:
    """URL of a server that asks for a password."""
    folder = tmp_path / "server"
    folder.mkdir()
    with running(debian_binary(), folder, "--port", "PORT", "--requirepass", "s3cret", "--maxmemory-policy", "noeviction") as port:
        yield f"redis://:s3cret@127.0.0.1:{port}"
