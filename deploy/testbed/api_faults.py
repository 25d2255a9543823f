"""What a proxy before the API server can do to a call instead of passing it on: the faults of a real path.

Each function makes a behaviour for `ApiProxy.inject`. Streams are written to the socket byte by byte, since a
web server's own response cannot be made to stop in the middle of a chunk.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

from aiohttp import web

Forward = Callable[[], Awaitable[web.StreamResponse]]
"""Lets the API server answer the call, as if there were no fault."""

Behaviour = Callable[[web.Request, Forward], Awaitable[web.StreamResponse]]

Ending = Literal["hang", "close"]
"""How an unfinished stream ends: it stays open without a byte, or the connection is closed."""


def status(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    """A Status object, as the API server refuses."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return body | ({"details": details} if details else {})


def respond(code: int, body: Any = "", headers: Mapping[str, str] | None = None) -> Behaviour:
    """Answer in the API server's place: a text as it is, all else as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/html" if isinstance(body, str) else "application/json"

    async def behave(_: web.Request, __: Forward) -> web.StreamResponse:
        return web.Response(status=code, text=text, content_type=kind, headers=headers)

    return behave


def close_connection() -> Behaviour:
    """Close the connection without a byte; the API server never sees the call."""

    async def behave(request: web.Request, _: Forward) -> web.StreamResponse:
        return _cut(request)

    return behave


def hang() -> Behaviour:
    """Read the request and never answer; the API server never sees the call."""
    return stream((), then="hang", headers=False)


def stream(
    pieces: Iterable[bytes] = (), *, then: Ending = "hang", every: float = 0.0, headers: bool = True
) -> Behaviour:
    """Answer 200 and the pieces as one chunk each, `every` so many seconds; then hang or close, unfinished.

    With no pieces it hangs after the headers; with a piece that has no newline it stops in the middle of a
    line.
    """
    return _raw([_chunk(piece) for piece in pieces], then, every, headers=headers)


def half_a_chunk(piece: bytes, *, then: Ending = "hang") -> Behaviour:
    """Answer 200 and promise a chunk twice as long as what is sent of it."""
    return _raw([b"%x\r\n%b" % (2 * len(piece), piece)], then, 0.0, headers=True)


def drip(piece: bytes = b" ", *, every: float = 0.05) -> Behaviour:
    """Answer 200 and send the piece again and again for ever, so that the connection looks alive."""

    async def behave(request: web.Request, _: Forward) -> web.StreamResponse:
        _write(request, HEADERS)
        while True:
            _write(request, _chunk(piece))
            await asyncio.sleep(every)

    return behave


def delay(seconds: float) -> Behaviour:
    """Let the API server answer after so many seconds."""

    async def behave(_: web.Request, forward: Forward) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await forward()

    return behave


def hold(until: asyncio.Event) -> Behaviour:
    """Let the call pass on when the event is set. One whose caller gave up before that is never passed on."""

    async def behave(_: web.Request, forward: Forward) -> web.StreamResponse:
        await until.wait()
        return await forward()

    return behave


def lose_answer() -> Behaviour:
    """Let the API server do what it is asked, and close the connection in place of its answer.

    A call that it refuses has nothing to lose: its answer is passed on.
    """

    async def behave(request: web.Request, forward: Forward) -> web.StreamResponse:
        answer = await forward()
        return answer if answer.status >= 400 else _cut(request)

    return behave


def first(act: Callable[[], Awaitable[Any]]) -> Behaviour:
    """Do something before the call is passed on: the writer that comes between a read and a write."""

    async def behave(_: web.Request, forward: Forward) -> web.StreamResponse:
        await act()
        return await forward()

    return behave


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _raw(pieces: Iterable[bytes], then: Ending, every: float, *, headers: bool) -> Behaviour:
    sent = [HEADERS, *pieces] if headers else [*pieces]

    async def behave(request: web.Request, _: Forward) -> web.StreamResponse:
        for piece in sent:
            _write(request, piece)
            await asyncio.sleep(every)
        if then == "hang":
            await asyncio.Event().wait()  # cancelled when the client goes away, or the proxy ends
        return _cut(request)

    return behave


def _write(request: web.Request, data: bytes) -> None:
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client went away")
    request.transport.write(data)


def _cut(request: web.Request) -> web.StreamResponse:
    """Close the connection once what was written is out. The response goes nowhere."""
    if request.transport is not None:
        request.transport.close()
    return web.Response()
