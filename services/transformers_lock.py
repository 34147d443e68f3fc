"""`transformers` changes torch's default dtype and tensor initialisation process-wide while it makes a model.

Where trainer and replicas are threads of one process (`--in-process`), two models made at once would get each other's.
"""

from __future__ import annotations

import threading

MAKING_A_MODEL = threading.Lock()
