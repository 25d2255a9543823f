"""Free TCP ports on loopback.

Below the range that the kernel takes for outgoing connections (32768 and up on Linux), so that between
our look and a server's bind only another testbed can take one. Servers that lose such a race start again.
"""

import random
import socket
from pathlib import Path

FIRST = 20_000
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
IN_USE = "address already in use"
"""How the log of a server says, in any case of letters, that it lost the race for its port."""

_taken: set[int] = set()


def free_port() -> int:
    """A port that is free now and that this process has not been given before."""
    below = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 32_768
    while True:
        port = random.randrange(FIRST, max(below, FIRST + 1000))  # noqa: S311 - no secret
        if port not in _taken and _is_free(port):
            _taken.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
