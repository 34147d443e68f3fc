"""A replica: one inference engine that performs what its inbox asks for."""
