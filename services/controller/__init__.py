"""The controller: the single arbiter of the trainer's devices; runs the swing, watches who is alive, ends the run."""
