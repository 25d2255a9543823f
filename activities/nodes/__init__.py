"""A Node as Kubernetes shows it: identity, block, tasks, test pods, and the proofs read from it."""
