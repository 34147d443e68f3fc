"""The policy service: runs one policy on the log."""
