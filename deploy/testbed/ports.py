"""Free TCP ports on loopback.

Below the range that the kernel takes for outgoing connections (32768 and up on Linux), and each given to one
process only, so that between our look and a server's bind only a stranger can take one. Servers that lose
such a race start again.
"""

import random
import socket
from pathlib import Path

FIRST = 20_000
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
IN_USE = "address already in use"
"""How the log of a server says, in any case of letters, that it lost the race for its port."""


def free_port() -> int:
    """A port that is free now, and that was given neither to us nor to a process of ours that still runs."""
    below = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 32_768
    while True:
        port = random.randrange(FIRST, max(below, FIRST + 1000))  # noqa: S311 - no secret
        if _is_free(port) and _claim(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Mark the port as ours for as long as this process lives, unless a process that lives has done so.

    The mark is a name in the kernel's abstract namespace of sockets: it is no file, and it goes with the
    process however that ends.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0gpu-runbooks-testbed-port-{port}")
    except OSError:
        mark.close()
        return False
    mark.detach()  # stays open
    return True
