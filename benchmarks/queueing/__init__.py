"""A seeded queueing model of a run in virtual time: where scheduling policies are judged."""
