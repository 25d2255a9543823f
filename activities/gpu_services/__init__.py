"""The pods that hold the GPUs beside the work, stopped for a reset and resumed after it."""
