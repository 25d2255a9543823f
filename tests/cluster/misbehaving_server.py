"""A server of the Kubernetes API that says on the wire what a healthy one cannot be made to say."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager

from aiohttp import web
from kubernetes.aio import client

from gpu_runbooks.activities.kubernetes.client import Kubernetes

NODES = "/api/v1/nodes"


def item(uid, version="1", **more):
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": version}} | more


def listing(*items, version="100"):
    return {"kind": "NodeList", "metadata": {"resourceVersion": version}, "items": list(items)}


def event(kind, subject):
    return json.dumps({"type": kind, "object": subject}).encode() + b"\n"


EXPIRED = {
    "kind": "Status",
    "code": 410,
    "reason": "Expired",
    "message": "too old resource version",
    "metadata": {},
}


class Server:
    """Answers lists and watches in turn as scripted; the last of each again and again."""

    def __init__(self, lists, watches=()):
        self._lists, self._watches = list(lists), list(watches)
        self.lists_answered = 0
        self.queries, self.watches = [], []

    async def handle(self, request):
        if request.query.get("watch"):
            self.watches.append(dict(request.query))
            return await self._watch(request, self._next(self._watches))
        self.lists_answered += 1
        self.queries.append(dict(request.query))
        status, body, headers = self._next(self._lists)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, headers=headers)

    @staticmethod
    def _next(script):
        return script.pop(0) if len(script) > 1 else script[0]

    async def _watch(self, request, step):
        status, chunks, hangs = step
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if hangs:
            await self.closing.wait()
        return response

    @asynccontextmanager
    async def connection(self):
        self.closing = asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (socket,) = site._server.sockets
        connection = Kubernetes(client.Configuration(host=f"http://127.0.0.1:{socket.getsockname()[1]}"))
        try:
            yield connection
        finally:
            await connection.close()
            self.closing.set()
            await runner.cleanup()


def ok(body, **headers):
    return (200, body, headers)


async def seen_after(server, uid):
    """Follow until an object shows."""
    async with (
        server.connection() as kubernetes,
        asyncio.timeout(20),
        aclosing(kubernetes.follow(NODES)) as states,
    ):
        async for objects in states:
            if uid in objects:
                return set(objects)
    raise AssertionError
