"""Fixtures of the incident tests: a real server."""

from incident.conftest import server

__all__ = ["server"]
