"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Settings = Annotated[list[str], typer.Option("--set", metavar="a.b=c", help="Overrides a setting, the value in YAML; may be repeated.")]
PolicySettings = Annotated[
    list[str], typer.Option("--set", metavar="name=value", help="A setting of the policy, the value in YAML; may be repeated.")
]
Redis = Annotated[str | None, typer.Option(metavar="URL", help="Server of the log: redis://, rediss:// or unix://. Also: REDIS_URL.")]
Named = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or its folder.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where the folders of runs are.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Configuration, such as examples/demo.yaml.")]
PolicyName = Annotated[
    str, typer.Argument(metavar="NAME|FILE:CLASS", help="A built-in policy, or a class in a file: path/file.py:ClassName.")
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="What a shadow is called, see `policy status`.")]
Patience = Annotated[float, typer.Option("--wait-s", min=0, help="How long to wait for what comes of it; 0: not at all.")]
RUNS = Path("runs")
