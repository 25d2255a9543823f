"""Text for a status, from bytes that anybody may have written."""

import re
from dataclasses import dataclass

UNPRINTABLE = re.compile(rb"[^\t\n\x20-\x7e]")


@dataclass(frozen=True)
class Part:
    """A part of the evidence as the CRD has it."""

    text: str
    note: str = ""
    """Why there is no text, or not all of it."""


def plain(content: bytes) -> str:
    """ASCII for any bytes. What is no printable character, tab or line end is written as its number.

    The kernel log does so itself; and no terminal that shows the text is told to do anything by it.
    """
    return UNPRINTABLE.sub(lambda found: b"\\x%02x" % found[0][0], content).decode("ascii")
