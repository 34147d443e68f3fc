"""The learner: losses, optimisation and checkpoints of one model, without any knowledge of the log."""
