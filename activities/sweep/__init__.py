"""What the sweep of a cluster reads and mends."""
