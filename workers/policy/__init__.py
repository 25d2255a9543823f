"""The policy as the workers and the commands use it: read, reloaded, explained, compared."""
