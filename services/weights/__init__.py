"""Published weights: the retained copy, what changed since the version before, and how a replica gets them."""
