r"""Records of `/dev/kmsg`: `<priority>,<sequence>,<microseconds>,<flags>;<text>`.

Lines below that begin with a space are about the device, and no text. Characters that cannot be printed, and
the backslash, are written as `\xNN`.

Source of the format: kernel, `Documentation/ABI/testing/dev-kmsg`.
"""

import re

from gpu_runbooks.activities.kernel_log.record import LONGEST_MESSAGE, Record

HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,19}),([0-9]{1,19}),[^;\n]{0,256};")

_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


def read_kmsg(header: re.Match[bytes], line: bytes) -> Record:
    """The record of a line that begins with a header. Its text may have several lines."""
    begin = line.index(b";", header.end(3)) + 1
    text = line[begin : begin + LONGEST_MESSAGE]
    if b"\\x" in text:
        text = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text)
    return Record(
        text=text.decode("utf-8", "replace"),
        kernel=is_kernel(int(header[1])),
        sequence=int(header[2]),
        microseconds=int(header[3]),
    )


def is_kernel(priority: int) -> bool:
    """Whether the facility is the kernel's. The lower three bits of a priority are the level."""
    return priority >> 3 == 0
