"""What these tests share with those of the incident and of the cluster: servers, nodes and rights."""

from cluster.conftest import admin, installed, kubernetes, make_node, node  # noqa: F401  fixtures
from incident.conftest import skipping  # noqa: F401  a fixture
