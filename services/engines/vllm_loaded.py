"""Importing this loads all that a replica with vLLM needs, which takes seconds: on all cores, before the replica is pinned to its own.

Nothing is heard of what vLLM and torch say to each other meanwhile.
"""

from __future__ import annotations

import os
import warnings

import torch

from services.engines.vllm import VllmEngine

# vLLM makes its loggers when it is loaded. A build for CPUs warns of each thing that CPUs do not have.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING" if torch.version.cuda else "ERROR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

__all__ = ["AsyncEngineArgs", "AsyncLLM", "VllmEngine"]
