"""The monitor: a run's summary and its live view, from the log alone."""
