"""How buckets of gradients are reduced and applied: by servers, after backward, without waiting for each other (mode:
ASYNC), or on one rank alone."""
