"""The strategies that reduce buckets of gradients and update by them: by servers while backward runs, after backward,
without ranks that wait for each other (mode: ASYNC), or on one rank alone."""
