"""Starts the services of a run and looks after them."""
