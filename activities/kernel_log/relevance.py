"""Tells at once which lines may matter: of a log of a hundred lines, perhaps one.

Words are looked for in text of one byte a character, which any bytes are: Python finds them faster there.
"""

import re

_BEGINNINGS = (
    b"NVRM",
    b"nvidia",
    b"nv_peer_mem",
    b"infiniband",
    b"efa ",
    b"ena ",
    b"gpu-runbooks",
    b"printk",
    b"** ",
    b"systemd-journald",
)
"""Of a record's text that may matter, but for a crash within NCCL and notes of suppressed lines."""

_BYTES = re.compile(r'"MESSAGE" ?: ?\[')
"""A message of the journal in which no word can be looked for."""


def is_relevant_text(line: bytes, begin: int) -> bool:
    """Whether a record may have something to tell whose text begins there."""
    if line.startswith(_BEGINNINGS, begin):
        return True
    text = line.decode("latin-1")
    return "suppressed" in text or "libnccl" in text


def is_relevant_line(line: bytes) -> bool:
    """Whether a line may have something to tell in which the text begins anywhere."""
    text = line.decode("latin-1")
    return (
        "NVRM" in text
        or "SXid" in text
        or "infiniband" in text
        or "efa " in text
        or "ena " in text
        or "suppressed" in text
        or "libnccl" in text
        or "peermem" in text
        or "peer_mem" in text
        or "gpu-runbooks" in text
        or "printk" in text
        or "journald" in text
        or ('"MESSAGE"' in text and _BYTES.search(text) is not None)
    )
