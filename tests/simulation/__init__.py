"""A seeded simulation of a whole run: the real cores and host on the in-memory log, scripted engines and learner, and faults everywhere.

A run is (seed, commit); a failure prints the one line that reruns it.
"""
