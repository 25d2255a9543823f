"""Wire types: what travels between processes through Temporal and NodeTasks."""
