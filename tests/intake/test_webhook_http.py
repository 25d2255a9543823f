"""Statuses and limits of the webhook's HTTP side. What takes the alerts is a stand-in here."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO

import aiohttp
import pytest
from intake.alerts import alert, notification

from gpu_runbooks.workers.intake import webhook_http, webhook_server
from gpu_runbooks.workers.intake.alertmanager import Webhook
from gpu_runbooks.workers.intake.metrics import Metrics
from gpu_runbooks.workers.intake.reception import Answer
from gpu_runbooks.workers.intake.webhook_access import Access
from testbed.ports import free_port

TOKEN = "s3cret-demo"
BODY = json.dumps(notification(alert(node="gpu-a1"))).encode()
BAD_REQUEST = (b"HTTP/1.1 400", b"HTTP/1.0 400")
Take = Callable[[Webhook], Awaitable[list[Answer]]]


async def take_all(webhook: Webhook) -> list[Answer]:
    return [Answer("taken", "started") for _ in webhook.alerts]


@asynccontextmanager
async def server(take: Take = take_all, *, token: str | None = TOKEN) -> AsyncIterator["Client"]:
    port = free_port()
    allowed, metrics = Access("127.0.0.1", port, token), Metrics()
    application = webhook_http.application(take, allowed, lambda: ("node",), metrics)
    async with webhook_server.serving(application, "127.0.0.1", port), aiohttp.ClientSession() as session:
        yield Client(port, session)


class Client:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.port = port
        self._session = session

    async def ask(self, method="POST", path="/alertmanager", data=BODY, token=TOKEN, **headers: str):
        """Status, headers and body of an answer."""
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = self._session.request(
            method, url, data=data, headers={name: text for name, text in sent.items() if text}
        )
        async with request as response:
            text = await response.text()
            return response.status, response.headers, json.loads(text) if text else {}

    async def raw(self, sent: bytes, *, then_wait: bool = True) -> bytes:
        """All that comes back to these bytes until the server closes; by ourselves unless we are to wait."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            await writer.drain()
            return await reader.read() if then_wait else await reader.read(1000)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def in_parts(parts: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(parts):
        yield b" " * size


async def test_the_type_does_not_matter_where_the_token_decides() -> None:
    async with server() as client:
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense", ""):
            assert (await client.ask(Content_Type=kind))[0] == 200


async def test_without_a_token_only_json_is_read() -> None:
    """A page in a browser may send anything else to this machine, unasked."""
    async with server(token=None) as client:
        assert (await client.ask(token=None))[0] == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            status, _, body = await client.ask(Content_Type=kind)
            assert (status, "application/json" in body["error"]) == (415, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/alertmanager", 405),
        ("HEAD", "/alertmanager", 405),
        ("OPTIONS", "/alertmanager", 405),
        ("PUT", "/alertmanager", 405),
        ("DELETE", "/alertmanager", 405),
        ("PATCH", "/alertmanager", 405),
        ("POST", "/healthz", 405),
        ("POST", "/metrics", 405),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/metrics/x", 404),
        ("POST", "/", 404),
        ("POST", "/alertmanager/", 404),
        ("POST", "/alertmanager/x", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/%2e%2e/etc/passwd", 404),
    ],
)
async def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    async with server() as client:
        answered, headers, body = await client.ask(method, path)

    assert answered == status
    assert headers["Content-Type"].startswith("application/json")
    if status != 200 and method != "HEAD":
        assert body["error"]
    if status == 405:
        assert headers["Allow"] == ("POST" if "alertmanager" in path else "GET, HEAD")


class TestBodies:
    @pytest.mark.parametrize("extra", [1, 30 * 1024 * 1024])
    async def test_too_long_by_its_own_word(self, extra: int) -> None:
        async with server() as client:
            status, _, body = await client.ask(data=BytesIO(b" " * (webhook_http.LONGEST_BODY + extra)))

        assert (status, "max_alerts" in body["error"]) == (413, True)

    async def test_too_long_without_a_word(self) -> None:
        async with server() as client:
            status, _, body = await client.ask(data=in_parts(9, 512 * 1024))

        assert (status, "max_alerts" in body["error"]) == (413, True)

    async def test_a_body_in_parts_is_read(self) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for number in range(0, len(BODY), 7):
                yield BODY[number : number + 7]

        async with server() as client:
            assert (await client.ask(data=parts()))[0] == 200

    async def test_megabytes_of_annotations_lose_no_other_alert(self) -> None:
        long = alert(node="gpu-a1") | {"annotations": {"summary": "x" * 3_000_000}}
        async with server() as client:
            status, _, body = await client.ask(data=BytesIO(json.dumps(notification(long, alert())).encode()))

        assert (status, len(body["alerts"])) == (200, 2)

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip"])
    async def test_nothing_is_decompressed(self, encoding: str) -> None:
        bomb = gzip.compress(b" " * 50_000_000)
        async with server() as client:
            status, _, body = await client.ask(data=bomb, Content_Encoding=encoding)
            assert (await client.ask(Content_Encoding="identity"))[0] == 200

        assert (status, "compressed" in body["error"]) == (415, True)

    @pytest.mark.parametrize("body", [b"", b"nonsense", b"[" * 200_000, b'{"a":' * 200_000, b"\x00" * 1000])
    async def test_no_notification_is_400(self, body: bytes) -> None:
        async with server() as client:
            status, _, answer = await client.ask(data=body)

        assert (status, "not a webhook of Alertmanager" in answer["error"]) == (400, True)

    async def test_a_body_that_drips_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhook_http, "BODY_SECONDS", 0.1)
        head = f"POST /alertmanager HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        async with server() as client:
            answer = await client.raw(f"{head}Content-Length: 1000\r\n\r\n{{".encode(), then_wait=False)

        assert answer.startswith(b"HTTP/1.1 503")

    async def test_broken_chunks_are_no_failure_of_ours(self) -> None:
        head = f"POST /alertmanager HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        async with server() as client:
            answer = await client.raw(
                f"{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(), then_wait=False
            )
            assert (await client.ask())[0] == 200

        assert answer.startswith(BAD_REQUEST)
        assert b"Traceback" not in answer


class TestHeads:
    async def test_a_head_that_drips_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhook_server, "IDLE_SECONDS", 0.1)
        async with server() as client, asyncio.timeout(30):
            assert await client.raw(b"POST /alertmanager HTTP/1.1\r\nX-Drip: ") == b""

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 200 + b"\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"nonsense\r\n\r\n",
        ],
    )
    async def test_a_head_that_is_none_is_400(self, head: bytes) -> None:
        async with server() as client:
            answer = await client.raw(head, then_wait=False)

        assert answer.startswith(BAD_REQUEST)
        assert b"Traceback" not in answer

    async def test_a_connection_too_many_is_closed_and_the_others_stay(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook_server, "MOST_CONNECTIONS", 1)
        async with server() as client:
            assert (await client.ask("GET", "/healthz"))[0] == 200  # keeps its connection
            assert await client.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
            assert (await client.ask("GET", "/healthz"))[0] == 200


class TestOverload:
    @pytest.mark.parametrize(
        ("limit", "value"), [("MOST_AT_ONCE", 1), ("MEMORY", webhook_http.SMALLEST_SHARE)]
    )
    async def test_what_has_no_room_is_503_at_once(
        self, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
    ) -> None:
        monkeypatch.setattr(webhook_http, limit, value)
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def slow(webhook: Webhook) -> list[Answer]:
            inside.set()
            await go_on.wait()
            return []

        async with server(slow) as client:
            first = asyncio.create_task(client.ask())
            await inside.wait()
            status, _, body = await client.ask()
            unauthorized, *_ = await client.ask(token="wrong")
            healthy, *_ = await client.ask("GET", "/healthz")
            go_on.set()

            assert (status, "send it again" in body["error"]) == (503, True)
            assert (unauthorized, healthy) == (401, 200)
            assert (await first)[0] == 200
            assert (await client.ask())[0] == 200, "the room is free again"

    async def test_a_body_of_unknown_length_takes_the_room_of_the_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook_http, "MEMORY", webhook_http.LONGEST_BODY - 1)
        async with server() as client:
            assert (await client.ask(data=in_parts(1, 1)))[0] == 503
            assert (await client.ask())[0] == 200

    async def test_a_mistake_of_ours_is_503_without_a_trace(self) -> None:
        async def broken(webhook: Webhook) -> list[Answer]:
            raise ZeroDivisionError("secret detail")

        async with server(broken) as client:
            status, _, body = await client.ask()

        assert status == 503
        assert "secret detail" not in str(body)

    async def test_one_alert_that_is_not_in_temporal_makes_it_503(self) -> None:
        async def some(webhook: Webhook) -> list[Answer]:
            return [Answer("a", "started"), Answer("b", "unavailable"), Answer("c", "refused")]

        async with server(some) as client:
            status, _, body = await client.ask()

        assert status == 503
        assert [each["status"] for each in body["alerts"]] == ["started", "unavailable", "refused"]
