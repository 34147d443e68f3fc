"""What a report and a trace of a long recording cost: seconds from the command to the file, and bytes.

    python -m benchmarks.report [--entries 100000]

The recording is that of `benchmarks.long_recording`; each command runs in a process of its own, start-up of Python included. Last line:
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.long_recording import record, simulate
from benchmarks.runs import scratch

LONGEST_S = 10.0
MOST_BYTES = 5_000_000


def seconds_and_bytes(arguments: Sequence[str], path: Path) -> tuple[float, int]:
    """Runs `swingshift replay` with these arguments, which write `path`."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "swingshift", "replay", *arguments, "-o", str(path)]
    subprocess.run(command, check=True)
    return time.perf_counter() - began, path.stat().st_size


def main() -> None:
    """Prints what was measured, then the JSON line; exit status 1 when the report takes longer or more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    store = simulate(parser.parse_args().entries)
    folder = scratch("report")
    record(folder, store)
    measured = {
        "report": seconds_and_bytes(["report", str(folder)], folder / "report.html"),
        "report_of_two": seconds_and_bytes(["report", str(folder), str(folder)], folder / "two.html"),
        "trace": seconds_and_bytes(["trace", str(folder)], folder / "run.pftrace"),
    }
    for name, (seconds, num_bytes) in measured.items():
        print(f"{name}: {seconds:.2f} s, {num_bytes / 1e6:.2f} MB")
    result: dict[str, object] = {"entries": len(store.entries)}
    for name, (seconds, num_bytes) in measured.items():
        result |= {f"{name}_s": round(seconds, 2), f"{name}_bytes": num_bytes}
    print(json.dumps(result))
    seconds, num_bytes = measured["report"]
    sys.exit(0 if seconds <= LONGEST_S and num_bytes <= MOST_BYTES else 1)


if __name__ == "__main__":
    main()
