"""The rollouter: feeds prompts, routes requests to replicas, scores answers, enforces the staleness limit. The only router."""
