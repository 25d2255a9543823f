"""Tells at once which lines may matter: of a log of a hundred lines, perhaps one."""

import re

from gpu_runbooks.activities.kernel_log.kmsg import HEADER

RECORD = re.compile(
    HEADER.pattern
    + rb"(NVRM|nvidia|nv_peer_mem|infiniband|efa |ena |gpu-runbooks|printk|\*\* |systemd-journald)?"
)
"""A header, and the beginning of a text that may matter. A crash within NCCL and a note of suppressed lines
begin with any name, so that their words are looked for."""

_BYTES = re.compile(r'"MESSAGE" ?: ?\[')
"""A message of the journal in which no word can be looked for."""


def is_relevant_record(record: re.Match[bytes], line: bytes) -> bool:
    """Whether a record of `/dev/kmsg` may have something to tell, of which `RECORD` matched the beginning."""
    return record[4] is not None or line.find(b"suppressed") >= 0 or line.find(b"libnccl") >= 0


def is_relevant_line(line: bytes) -> bool:
    """Whether a line may have something to tell in which the text begins anywhere."""
    text = line.decode("latin-1")  # never fails, and many words are found in text faster than in bytes
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
