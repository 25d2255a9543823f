"""A reverse proxy before the API server that does to calls what networks, load balancers and busy servers do.

    async with ApiProxy.start(plane.url, plane.authority) as proxy, plane.client(through=proxy) as kubernetes:
        proxy.inject(respond(409), method="PATCH", path="/api/v1/nodes/.*", times=2)
        ...
        assert proxy.count("POST", ".*/eviction") == 0

A call that no rule fits is passed on as it is, watches line by line. Every call is recorded, whoever answers
it. Behaviours are in `testbed.api_faults`.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from testbed.api_faults import Behaviour

OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "host"})
"""Headers that are not passed on."""

LARGEST_BODY = 64 * 2**20


@dataclass(frozen=True)
class Call:
    """One call that came in."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str

    @property
    def watch(self) -> bool:
        return self.query.get("watch") in {"true", "1"}


@dataclass
class Rule:
    """What happens to the calls that it fits."""

    behaviour: Behaviour
    method: str
    path: re.Pattern[str]
    body: re.Pattern[str]
    watch: bool | None
    authorization: str | None
    skip: int
    left: float
    met: list[Call] = field(default_factory=list)
    """The calls that had this behaviour."""

    def takes(self, call: Call) -> bool:
        """Whether this call is one for the rule; that counts it."""
        fits = (
            self.method in {"*", call.method}
            and self.path.fullmatch(call.path) is not None
            and self.body.search(call.body.decode(errors="replace")) is not None
            and self.watch in {None, call.watch}
            and self.authorization in {None, call.authorization}
        )
        if not fits or self.left <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.left -= 1
        self.met.append(call)
        return True


class ApiProxy:
    """A running proxy. Rules are tried in the order in which they were given."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._session = session
        self._rules: list[Rule] = []
        self._open: set[asyncio.BaseTransport] = set()
        self._outage: Behaviour | None = None
        self.calls: list[Call] = []
        self.answered: list[tuple[Call, int]] = []
        """The calls that the API server itself answered, with the status."""
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def start(cls, upstream: str, authority: Path) -> AsyncIterator["ApiProxy"]:
        """Serve plain HTTP on a free loopback port; `authority` signed the API server's certificate.

        On leaving, whatever still hangs is cut.
        """
        trust = ssl.create_default_context(cafile=str(authority))
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),  # the client before the proxy gives up, not the proxy
            auto_decompress=False,
        )
        async with session:
            proxy = cls(upstream, session)
            application = web.Application(client_max_size=LARGEST_BODY)
            application.router.add_route("*", "/{path:.*}", proxy._handle)
            runner = web.AppRunner(
                application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
            )
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0][:2]
                proxy.url = f"http://{host}:{port}"
                yield proxy
            finally:
                await runner.cleanup()

    def inject(
        self,
        behaviour: Behaviour,
        *,
        method: str = "*",
        path: str = ".*",
        body: str = "",
        watch: bool | None = None,
        authorization: str | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> Rule:
        """Do this to the next `times` calls that fit (None: to all), after letting `skip` of them pass.

        `path` is a regular expression for the whole path, without query, `body` one for a part of the body;
        `watch` None takes lists and watches alike; `authorization` is the whole header.
        """
        left = float("inf") if times is None else times
        rule = Rule(behaviour, method, re.compile(path), re.compile(body), watch, authorization, skip, left)
        self._rules.append(rule)
        return rule

    def forget(self, rule: Rule) -> None:
        """Forget one rule."""
        self._rules.remove(rule)

    def heal(self) -> None:
        """Forget all rules. What hangs already goes on hanging."""
        self._rules.clear()

    @contextmanager
    def outage(self, behaviour: Behaviour) -> Iterator[None]:
        """Do this to every call while the body runs, whatever the rules say; open connections are cut."""
        self._outage = behaviour
        for connection in self._open:
            connection.close()
        try:
            yield
        finally:
            self._outage = None

    def seen(self, method: str = "*", path: str = ".*", *, watch: bool | None = None) -> list[Call]:
        """The calls so far that fit, oldest first."""
        wanted = re.compile(path)
        return [
            call
            for call in self.calls
            if method in {"*", call.method} and wanted.fullmatch(call.path) and watch in {None, call.watch}
        ]

    def count(self, method: str = "*", path: str = ".*", *, watch: bool | None = None) -> int:
        return len(self.seen(method, path, watch=watch))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(
            request.method,
            request.path,
            dict(request.query),
            await request.read(),
            request.headers.get("Authorization", ""),
        )
        self.calls.append(call)
        if self._outage is not None:
            return await self._outage(request, lambda: self._forward(request, call))
        connection = request.transport
        if connection is None:
            raise ConnectionResetError("the client went away")
        self._open.add(connection)
        try:
            return await self._answer(request, call)
        except ConnectionResetError:
            if not connection.is_closing():
                raise
            return web.Response()  # to nobody: an outage, or the caller, closed the connection
        finally:
            self._open.discard(connection)

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        async def forward() -> web.StreamResponse:
            return await self._forward(request, call)

        for rule in self._rules:
            if rule.takes(call):
                return await rule.behaviour(request, forward)
        return await forward()

    async def _forward(self, request: web.Request, call: Call) -> web.StreamResponse:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in {*OF_ONE_CONNECTION, "content-length"}
        }
        async with self._session.request(
            call.method,
            URL(self._upstream + request.raw_path, encoded=True),
            headers=headers,
            data=call.body or None,
            skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            allow_redirects=False,
        ) as answer:
            self.answered.append((call, answer.status))
            passed_on = [
                (name, value)
                for name, value in answer.headers.items()
                if name.lower() not in OF_ONE_CONNECTION
            ]
            if not call.watch:
                body = await answer.read()
                passed_on = [(name, value) for name, value in passed_on if name.lower() != "content-length"]
                return web.Response(status=answer.status, body=body, headers=passed_on)
            response = web.StreamResponse(status=answer.status, headers=passed_on)
            writer = await response.prepare(request)
            if writer is not None:
                writer.send_headers()  # before the first event, as the API server does
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
