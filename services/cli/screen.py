"""What `swingshift run` shows: the warm start, then the live view."""
