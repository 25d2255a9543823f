"""The server under the webhook: how many connections, how long their heads and bodies, how patient it is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web

MOST_CONNECTIONS = 1024
"""Open at once. One more is closed as it comes: Alertmanager sends again."""

IDLE_SECONDS = 60
"""Time in which the head of a request has to arrive, on a new connection and after the request before."""

LONGEST_LINE = 8190
"""Bytes of the request line, and of one header."""

MOST_HEADERS = 64

http_log = logging.getLogger(f"{__name__}.http")
http_log.setLevel(logging.CRITICAL)
"""What is no HTTP is answered with 400 and not logged: anyone can send it, many lines each."""


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[None]:
    """Serve until the block ends. Raises `OSError` for an address that cannot be listened on."""
    runner = web.AppRunner(
        application,
        access_log=None,  # what matters is logged alert by alert
        auto_decompress=False,  # a small body stays a small body
        keepalive_timeout=IDLE_SECONDS,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        max_headers=MOST_HEADERS,
        lingering_time=5.0,
        logger=http_log,
    )
    await runner.setup()
    server = cast(web.Server, runner.server)

    def accept() -> asyncio.Protocol:
        full = len(server.connections) >= MOST_CONNECTIONS
        return _Refused() if full else server()

    try:
        listening = await asyncio.get_running_loop().create_server(accept, host, port)
        try:
            yield
        finally:
            listening.close()
    finally:
        await runner.cleanup()
