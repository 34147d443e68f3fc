"""Recorded logs: verify, look at, explain."""
