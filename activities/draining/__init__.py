"""Draining a node: which pods leave, how each is made to, and what keeps those that stay."""
