"""How buckets of gradients are reduced and applied: by servers, after backward, or on one rank alone."""
