"""Tests of the matrix: workers over a scripted world from the incidents' tests, and the real server."""

from incident.conftest import server

__all__ = ["server"]
