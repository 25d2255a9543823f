"""The time-skipping server of the incident's tests: deadlines of days pass in milliseconds."""

from incident.conftest import skipping  # noqa: F401  a fixture
