"""The archiver: copies the log to disk while the run goes on."""
