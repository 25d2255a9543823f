"""Tells at once which lines may matter: of a log of a hundred lines, perhaps one."""

import re

_BYTES = re.compile(rb'"MESSAGE" ?: ?\[')
"""A message of the journal in which no word can be looked for."""


def is_relevant(line: bytes) -> bool:
    """Whether a line may have something to tell. Most have not, and cost no more than this."""
    return (
        b"NVRM" in line
        or b"SXid" in line
        or b"infiniband" in line
        or b"efa " in line
        or b"ena " in line
        or b"suppressed" in line
        or b"libnccl" in line
        or b"peermem" in line
        or b"peer_mem" in line
        or b"gpu-runbooks" in line
        or b"printk" in line
        or b"journald" in line
        or (b'"MESSAGE"' in line and _BYTES.search(line) is not None)
    )
