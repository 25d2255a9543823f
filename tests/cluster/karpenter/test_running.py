"""Karpenter as a part of the testbed."""

import socket
from pathlib import Path


def listening(pid):
    """Local addresses, as the kernel writes them, on which a process listens."""
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def runs(pid):
    return Path(f"/proc/{pid}").exists()


async def test_it_listens_on_loopback_only_and_ends_when_told(karpenter):
    loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
    before = karpenter.pid
    addresses = listening(before)
    assert len(addresses) == 2  # metrics and health
    assert {address.partition(":")[0] for address in addresses} == {loopback}
    await karpenter.stop()
    assert not runs(before)
    await karpenter.launch()
    assert karpenter.pid != before
