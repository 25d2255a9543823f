"""The Kubernetes API: one connection, its lists and watches, and what its answers mean."""
