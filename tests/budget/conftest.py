"""The servers of the incidents' tests, and those of the cluster."""

from cluster.conftest import admin, faulty, installed, kubernetes, make_node, proxy
from incident.conftest import server, skipping

__all__ = ["admin", "faulty", "installed", "kubernetes", "make_node", "proxy", "server", "skipping"]
