"""Inference engines behind one protocol (`protocol.Engine`): embedded (transformers) and scripted (tests)."""
