"""One model under training by several ranks, each a process with a device of its own (FSDP2); only rank 0 is seen from outside.

    trainer's shell ──Learner──▶ ShardedLearner (rank 0) ──commands──▶ follow (rank 1 … n-1)
                                       └── Rank ◀──── all-gather, reduce-scatter ────▶ Rank

Every rank holds the same n-th part of each tensor: weights, moments, anchors. Nothing in here knows the log.
"""
