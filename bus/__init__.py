"""The bus: events, their envelope and codec, the ordered log (Redis and in-memory), payloads, and the host that drives a core."""
