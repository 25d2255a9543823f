"""Karpenter's objects: replacement through a NodeClaim, its budgets, and its own repairs."""
