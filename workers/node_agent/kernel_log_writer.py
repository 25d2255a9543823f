"""Writes lines into the kernel log, so that they stand among the driver's own."""

import os
from collections.abc import Iterable
from pathlib import Path

from gpu_runbooks.activities.kernel_log.marker import LONGEST_LINE

NOTICE = "<5>"


def write_lines(log: Path, lines: Iterable[str]) -> str:
    """Append the lines to `/dev/kmsg`, which must be there. Returns why one could not be written, or nothing.

    The kernel takes ten lines in five seconds from one who opened the log, so it is opened for each.
    """
    for line in lines:
        record = f"{NOTICE}{line}\n".encode()
        if len(record) > LONGEST_LINE:
            return f"the kernel log has no marker of this reset: the line is {len(record)} bytes long"
        try:
            target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(target, record)
            finally:
                os.close(target)
        except OSError as error:
            return f"the kernel log has no marker of this reset: {log}: {error.strerror}"
    return ""
