"""What is said to the owners of workloads: which pods have a node's GPUs, who owns them, and the Event."""
