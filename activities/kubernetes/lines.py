"""Lines of a stream, whatever their length up to a limit: an object with its annotations is one line."""

from collections.abc import AsyncGenerator

import aiohttp

LONGEST_LINE = 16 * 2**20
"""Bytes. The API server takes objects of 1.5 MiB, and writes some of their characters as six."""


async def lines_of(stream: aiohttp.StreamReader, longest: int = LONGEST_LINE) -> AsyncGenerator[bytes, None]:
    """Each line without its end; what follows the last line end comes last, if there is any.

    Raises `ValueError` for a line that is longer.
    """
    held = bytearray()
    async for chunk in stream.iter_any():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            held += chunk[start:end]
            yield bytes(held)
            held = bytearray()  # not `clear`, which keeps the memory of the longest line
            start = end + 1
        held += chunk[start:]
        if len(held) > longest:
            raise ValueError(f"a line of more than {longest} bytes")
    if held:
        yield bytes(held)
