"""Built-in verifiable tasks: prompts, rewards, a small model made on the spot and its warm start."""
