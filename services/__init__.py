"""One folder a service: `core.py` decides without I/O, the rest is the shell that acts."""
