"""A fleet of scripted nodes, with the real guard, budgets and incidents."""

from incident.conftest import skipping

__all__ = ["skipping"]
