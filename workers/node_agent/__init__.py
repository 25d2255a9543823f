"""The node agent: carries out the NodeTasks of its own node, and reports its health."""
