"""What to decide and in which order: the policy, the ladder and the workflows."""
