"""Weights from the trainer's host straight to a replica's device, as a faster way on top of the retained copy."""
