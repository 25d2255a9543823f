"""What is kept of a node before a repair destroys it."""
