"""The client against servers that misbehave on the wire, which a healthy API server cannot be made to do."""

import asyncio
import itertools
import json
import tracemalloc
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from cluster.conftest import soon
from kubernetes.aio import client

from gpu_runbooks.activities.kubernetes import client as module
from gpu_runbooks.activities.kubernetes import lines
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError
from gpu_runbooks.activities.kubernetes.connection import limits
from gpu_runbooks.activities.kubernetes.error import LONGEST_RETRY_AFTER, error_of, seconds_asked
from gpu_runbooks.activities.kubernetes.waiting import wait_for

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


@pytest.fixture
def impatient(monkeypatch):
    """Short intervals; the order of calls stays."""
    monkeypatch.setattr(module, "LIST_INTERVAL", 0.01)
    monkeypatch.setattr(module, "WATCH_TIMEOUT", 0.2)
    monkeypatch.setattr(module, "CALL_TIMEOUT", 5.0)


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


@pytest.mark.parametrize(
    "watch",
    [
        pytest.param((200, [event("ERROR", EXPIRED)], False), id="410 as an event"),
        pytest.param((410, [json.dumps(EXPIRED).encode()], False), id="410 as a status"),
        pytest.param((500, [b'{"message": "resourceVersion: Invalid value: None"}'], False), id="500"),
        pytest.param((502, [b"<html>"], False), id="a proxy's page"),
        pytest.param((200, [], False), id="an empty stream"),
        pytest.param((200, [b'{"type":"ADDED","obj'], False), id="half an event"),
        pytest.param(
            (200, [b'{"type":"ADDED","object":{"kind":"Node"}}\n'], False), id="an object without UID"
        ),
        pytest.param((200, [b'{"object":{}}\n'], False), id="an event without type"),
        pytest.param((200, [b"[1]\n"], False), id="no object"),
        pytest.param((200, [event("SURPRISE", item("x"))], False), id="an unknown type"),
        pytest.param((200, [], True), id="silence"),
        pytest.param((200, [b'{"type":"ADDED"'], True), id="silence after half an event"),
    ],
)
async def test_whatever_ends_a_watch_a_new_list_follows(impatient, watch):
    server = Server([ok(listing(item("old"))), ok(listing(item("new")))], [watch])
    assert await seen_after(server, "new") == {"new"}
    assert server.lists_answered == 2


async def test_events_are_applied_and_bookmarks_passed_over(impatient):
    bookmark = {"kind": "Node", "metadata": {"resourceVersion": "901"}}
    events = [
        event("BOOKMARK", bookmark),
        event("DELETED", item("old")),
        event("MODIFIED", item("kept", "2")),
        event("ADDED", item("new")),
    ]
    server = Server([ok(listing(item("old"), item("kept")))], [(200, events, True)])
    assert await seen_after(server, "new") == {"kept", "new"}
    assert server.lists_answered == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ok("<html>"), id="a proxy's page"),
        pytest.param(ok({}), id="an empty object"),
        pytest.param(ok({"kind": "Status", "metadata": {"resourceVersion": "1"}}), id="no list"),
        pytest.param(ok({"kind": "NodeList", "items": []}), id="no version"),
        pytest.param(
            ok({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": "x"}), id="no items"
        ),
        pytest.param((500, "", {}), id="500"),
        pytest.param((429, "", {"Retry-After": "0"}), id="429"),
    ],
)
async def test_a_list_that_is_none_is_unknown_and_not_empty(impatient, answer):
    async with Server([answer]).connection() as kubernetes:
        with pytest.raises(KubernetesError):
            await kubernetes.items(NODES)
    server = Server([answer, ok(listing(item("new")))], [(200, [], True)])
    async with server.connection() as kubernetes, aclosing(kubernetes.follow(NODES)) as states:
        assert set(await anext(states)) == {"new"}


ODD = [
    pytest.param(None, id="null"),
    pytest.param("text", id="a text"),
    pytest.param([], id="a list"),
    pytest.param({}, id="no metadata"),
    pytest.param({"metadata": None}, id="metadata null"),
    pytest.param({"metadata": "text"}, id="metadata a text"),
    pytest.param({"metadata": {"name": "x"}}, id="no UID"),
    pytest.param({"metadata": {"name": "x", "uid": 7}}, id="a number for UID"),
    pytest.param({"metadata": {"name": None, "uid": "x"}}, id="name null"),
    pytest.param({"metadata": {"name": "", "uid": "x"}}, id="no name"),
]


@pytest.mark.parametrize("odd", ODD)
async def test_one_odd_object_hides_no_other_and_is_no_emptiness(impatient, caplog, odd):
    server = Server([ok(listing(item("a"), odd, item("b")))], [(200, [], True)])
    async with server.connection() as kubernetes:
        listed = await kubernetes.list_objects(NODES)
        assert ([each["metadata"]["uid"] for each in listed.items], listed.unreadable) == (["a", "b"], 1)
        assert await kubernetes.items(NODES) == listed.items
        async with aclosing(kubernetes.follow(NODES)) as states:
            assert set(await anext(states)) == {"a", "b"}
    assert len([record for record in caplog.records if "left out" in record.message]) == 1
    async with Server([ok(listing(odd))]).connection() as kubernetes:
        alone = await kubernetes.list_objects(NODES)
    assert (alone.items, alone.unreadable) == ([], 1)


@pytest.mark.parametrize(
    "unusual",
    [
        {"metadata": {"uid": "x", "name": "x", "labels": None, "annotations": None}},
        {"metadata": {"uid": "x", "name": "x"}, "spec": None, "status": None},
        {"metadata": {"uid": "x", "name": "x"}, "status": {"phase": "Hibernating"}, "future": [1]},
    ],
)
async def test_what_is_only_unusual_is_passed_on_as_it_is(unusual):
    async with Server([ok(listing(unusual))]).connection() as kubernetes:
        assert await kubernetes.items(NODES) == [unusual]


def page(*items, rest="", version="100"):
    return {
        "kind": "NodeList",
        "metadata": {"resourceVersion": version, "continue": rest},
        "items": list(items),
    }


async def test_all_pages_of_a_list_are_one():
    pages = [
        ok(page(item("a"), rest="p2")),
        ok(page(item("b"), None, rest="p3", version="101")),
        ok(page(item("c"))),
    ]
    server = Server(pages)
    async with server.connection() as kubernetes:
        listed = await kubernetes.list_objects(NODES, field_selector="metadata.name!=x")
    uids = [each["metadata"]["uid"] for each in listed.items]
    assert (uids, listed.unreadable, listed.version) == (["a", "b", "c"], 1, "100")
    assert [query.get("continue") for query in server.queries] == [None, "p2", "p3"]
    assert {query["fieldSelector"] for query in server.queries} == {"metadata.name!=x"}


@pytest.mark.parametrize(
    ("answers", "uids"),
    [
        pytest.param(
            [ok(page(item("a"), rest="p2")), (410, EXPIRED, {}), ok(page(item("a"), item("b")))],
            ["a", "b"],
            id="the second page has expired: from the beginning",
        ),
        pytest.param(
            [ok(page(item("a"), rest="p2")), (410, EXPIRED, {})] * 2, None, id="it has expired again"
        ),
        pytest.param([ok(page(item("a"), rest="p2"))], None, id="a page that leads to itself"),
        pytest.param([ok(page(item("a"), rest="p2")), ok("<html>")], None, id="the second page is none"),
        pytest.param([ok(page(item("a"), rest="p2")), (500, "", {})], None, id="the second page fails"),
    ],
)
async def test_half_a_list_is_never_a_whole_one(answers, uids):
    async with asyncio.timeout(20), Server(answers).connection() as kubernetes:
        if uids is None:
            with pytest.raises(KubernetesError):
                await kubernetes.list_objects(NODES)
        else:
            assert [each["metadata"]["uid"] for each in await kubernetes.items(NODES)] == uids


async def test_pages_without_end_are_given_up(monkeypatch):
    monkeypatch.setattr(module, "LIST_TIMEOUT", 0.3)
    number = itertools.count()

    class Endless(Server):
        async def handle(self, _):
            return web.json_response(page(item("a"), rest=str(next(number))))

    async with Endless([]).connection() as kubernetes:
        with pytest.raises(KubernetesError, match="not all pages"):
            await kubernetes.list_objects(NODES)


# --- collections of thousands ---------------------------------------------------------------------------


def version_of(node):
    return node["metadata"]["resourceVersion"]


@asynccontextmanager
async def following(server, *, list_every=3600.0, keep=version_of):
    """What is kept of a collection that is listed in pages and watched on where the last watch ended."""
    async with (
        server.connection() as kubernetes,
        asyncio.timeout(20),
        aclosing(kubernetes.follow(NODES, keep=keep, page_size=2, list_every=list_every)) as states,
    ):
        yield states


async def test_a_collection_is_asked_for_in_pages(impatient):
    pages = [ok(page(item("a"), item("b"), None, rest="p2")), ok(page(item("c"), version="101"))]
    server = Server(pages, [(200, [event("MODIFIED", item("a", "102"))], True)])
    async with following(server) as states:
        seen = await anext(states)
        assert (dict(seen), seen.changed) == ({"a": "1", "b": "1", "c": "1"}, {"a", "b", "c"})
        seen = await anext(states)
        assert (seen["a"], seen.changed, seen.version) == ("102", {"a"}, "102")
    assert [(query["limit"], query.get("continue")) for query in server.queries] == [("2", None), ("2", "p2")]


async def test_no_more_than_a_page_of_whole_objects_is_held(impatient):
    """40 MB go by; client and server together hold a few pages of 400 kB."""
    numbers = itertools.count(1)

    class Large(Server):
        async def handle(self, request):
            if request.query.get("watch"):
                return await super().handle(request)
            number = next(numbers)
            large = item(f"n{number}") | {"annotations": "x" * 400_000}
            return web.json_response(page(large, rest=str(number) if number < 100 else ""))

    async with following(Large([], [(200, [], True)])) as states:
        tracemalloc.start()
        try:
            assert len(await anext(states)) == 100
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 10_000_000


def bookmark(version):
    return event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": version}})


WELL = [
    pytest.param((200, [event("MODIFIED", item("a", "105"))], False), id="ended"),
    pytest.param((200, [bookmark("105")], False), id="ended after a bookmark"),
    pytest.param((200, [bookmark("105")], True), id="silence after a bookmark"),
]
PASSING = [
    pytest.param((503, [], False), id="503"),
    pytest.param((429, [], False), id="429"),
    pytest.param((502, [b"<html>"], False), id="a load balancer's page"),
    pytest.param((200, [], False), id="an empty stream"),
    pytest.param((200, [], True), id="silence"),
]
ODD_WATCHES = [
    pytest.param((410, [json.dumps(EXPIRED).encode()], False), id="410 as a status"),
    pytest.param((200, [bookmark("105"), event("ERROR", EXPIRED)], False), id="410 as an event"),
    pytest.param((500, [b'{"message": "resourceVersion: Invalid value: None"}'], False), id="500"),
    pytest.param((200, [bookmark("105"), b'{"type":"ADDED","obj'], False), id="half an event"),
    pytest.param((200, [bookmark("105"), b'{"type":"ADDED","object":{}}\n'], False), id="an odd object"),
]


@pytest.mark.parametrize(
    ("watch", "version"),
    [(each.values[0], "105") for each in WELL] + [(each.values[0], "100") for each in PASSING],
)
async def test_a_watch_goes_on_where_the_last_one_ended(impatient, watch, version):
    server = Server([ok(listing(item("a")))], [watch, (200, [event("ADDED", item("new", "106"))], True)])
    async with following(server) as states:
        async for nodes in states:
            if "new" in nodes:
                break
    assert server.lists_answered == 1
    assert [query["resourceVersion"] for query in server.watches] == ["100", version]
    assert {query["allowWatchBookmarks"] for query in server.watches} == {"true"}


@pytest.mark.parametrize("watch", ODD_WATCHES)
async def test_after_an_oddity_all_is_listed_anew(impatient, watch):
    server = Server([ok(listing(item("a"))), ok(listing(item("new")))], [watch])
    async with following(server) as states:
        async for nodes in states:
            if "new" in nodes:
                assert set(nodes) == {"new"}
                break
    assert server.lists_answered == 2


async def test_a_server_that_says_nothing_for_long_is_not_believed(impatient, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.5)
    server = Server([ok(listing(item("a"))), ok(listing(item("new")))], [(200, [], True)])
    async with following(server) as states:
        async for nodes in states:
            if "new" in nodes:
                break
    assert len(server.watches) > 1


async def test_a_rare_list_is_the_safety_net(impatient):
    server = Server([ok(listing(item("a"))), ok(listing(item("new")))], [(200, [bookmark("105")], False)])
    async with following(server, list_every=0.5) as states:
        async for nodes in states:
            if "new" in nodes:
                break
    assert len(server.watches) > 1


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_an_object_with_long_annotations_ends_no_watch(impatient, size):
    long = item("long", "101")
    long["metadata"]["annotations"] = {"example.com/note": "x" * size}
    server = Server(
        [ok(listing(item("a")))], [(200, [event("ADDED", long), event("ADDED", item("b"))], True)]
    )
    async with following(server) as states:
        async for nodes in states:
            if "b" in nodes:
                break
    assert set(nodes) == {"a", "long", "b"}
    assert (server.lists_answered, len(server.watches)) == (1, 1)


async def test_a_line_beyond_all_measure_is_not_held(impatient, monkeypatch):
    monkeypatch.setattr(lines.lines_of, "__defaults__", (10_000,))
    monkeypatch.setattr(module, "SILENCE", 0.3)
    endless = (200, [b"x" * 5_000] * 10, True)
    server = Server([ok(listing(item("a"))), ok(listing(item("new")))], [endless])
    async with following(server) as states:
        async for nodes in states:
            if "new" in nodes:
                break
    assert server.lists_answered == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 415, 422])
async def test_refusals_are_errors_and_not_tried_again(impatient, status):
    async with Server([(status, {}, {})]).connection() as kubernetes:
        with pytest.raises(KubernetesError):
            await anext(kubernetes.follow(NODES))
    async with Server([ok(listing())], [(status, [], False)]).connection() as kubernetes:
        states = kubernetes.follow(NODES)
        await anext(states)
        with pytest.raises(KubernetesError) as refused:
            await anext(states)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("body", "headers", "seconds"),
    [
        ("", {"Retry-After": "7"}, 7.0),
        ("", {"Retry-After": " 1.5 "}, 1.5),
        ({"details": {"retryAfterSeconds": 3}}, {}, 3.0),
        ({"details": {"retryAfterSeconds": 3}}, {"Retry-After": "abc"}, 3.0),
        ({"details": {"retryAfterSeconds": None}}, {}, None),
        ({"details": {"retryAfterSeconds": True}}, {}, None),
        ("<html>429</html>", {"Retry-After": "abc"}, None),
        ("", {"Retry-After": ""}, None),
        ("", {"Retry-After": "inf"}, None),
        ("", {"Retry-After": "nan"}, None),
        ("", {"Retry-After": "-3"}, 0.0),
        ("", {"Retry-After": "86400"}, 60.0),
        ("", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ("", {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}, 60.0),
        ("", {"Retry-After": "Wed, 99 Oct 2099 07:28:00 GMT"}, None),
        ({"details": "broken"}, {}, None),
        ({"details": {"causes": ["broken"]}}, {}, None),
        ({"details": {"causes": "broken"}, "message": ["broken"], "reason": 7}, {}, None),
    ],
)
async def test_servers_wish_to_wait_is_read(body, headers, seconds):
    async with Server([(429, body, headers)]).connection() as kubernetes:
        with pytest.raises(KubernetesError) as throttled:
            await kubernetes.request("GET", f"{NODES}/n")
    assert (throttled.value.status, throttled.value.retry_after, throttled.value.causes()) == (
        429,
        seconds,
        (),
    )


def test_a_date_is_waited_for():
    now = datetime(2026, 3, 1, 8, 0, 0, tzinfo=UTC)
    assert seconds_asked("Sun, 01 Mar 2026 08:00:20 GMT", now) == 20.0
    assert seconds_asked("Sun, 01 Mar 2026 08:00:20 -0000", now) == 20.0


@pytest.mark.parametrize(
    ("wish", "seconds"),
    [
        (10**400, LONGEST_RETRY_AFTER),
        (-(10**400), 0.0),
        ("9" * 400, None),
        ({}, None),
        ([1], None),
        (True, None),
    ],
)
def test_no_wish_of_a_server_breaks_its_reader(wish, seconds):
    assert seconds_asked(wish, None) == seconds
    body = json.dumps({"kind": "Status", "details": {"retryAfterSeconds": wish}}).encode()
    assert error_of(429, {}, body, "GET /").retry_after == seconds


@pytest.mark.parametrize(
    "body", ["<html>Bad gateway</html>", "", '"a text"', "[1]", "null", '{"message":', "[" * 100_000]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_error_is_judged_by_its_status_whatever_its_body(method, body):
    async with Server([(502, body, {})]).connection() as kubernetes:
        with pytest.raises(KubernetesError) as failed:
            await kubernetes.request(method, f"{NODES}/n")
    assert (failed.value.status, failed.value.body) == (502, {})
    assert len(failed.value.message) < 400


async def test_a_text_from_the_server_is_shown():
    text = "name in URL does not match name in Eviction object: Name parameter required."
    async with Server([(400, text, {})]).connection() as kubernetes:
        with pytest.raises(KubernetesError, match="Name parameter required"):
            await kubernetes.request("POST", f"{NODES}/n/eviction", body={})


@pytest.mark.parametrize(
    "answer",
    ["<html>", "", "[]", "{}", {"kind": "Status", "metadata": {}}, {"kind": "Node", "metadata": None}],
)
async def test_a_read_that_shows_no_object_is_unknown_and_not_absent(answer):
    async with Server([ok(answer)]).connection() as kubernetes:
        for read in (kubernetes.request("GET", f"{NODES}/n"), kubernetes.find(f"{NODES}/n")):
            with pytest.raises(KubernetesError) as unreadable:
                await read
            assert (unreadable.value.status, unreadable.value.reason) == (0, "Unreadable")


async def test_accepting_a_write_needs_no_body():
    async with Server([(201, "", {})]).connection() as kubernetes:
        assert await kubernetes.request("POST", f"{NODES}/n/eviction", body={}) == {}


async def test_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "CALL_TIMEOUT", 0.2)

    class Mute(Server):
        async def handle(self, _):
            await self.closing.wait()
            return web.Response()

    async with Mute([]).connection() as kubernetes:
        with pytest.raises(KubernetesError) as unanswered:
            await kubernetes.request("GET", NODES)
    assert unanswered.value.status == 0


def test_pauses_grow_with_failures_and_have_a_longest():
    pauses = [module._interval(failures) for failures in range(60)]
    assert pauses[:4] == [2.5, 2.5, 5.0, 10.0]
    assert set(pauses[4:]) == {module.LONGEST_PAUSE}


def test_no_limit_of_a_call_is_left_open():
    for seconds in (module.CALL_TIMEOUT, module.WATCH_TIMEOUT):
        each = limits(seconds)
        given = [each.total, each.connect, each.sock_connect, each.sock_read]
        assert all(limit is not None and 0 < limit <= 35 for limit in given)
    assert module.WATCH_SECONDS < module.WATCH_TIMEOUT
    # a list and a watch in each interval: at most one request a second
    assert module.LIST_INTERVAL >= 2


async def test_wait_looks_once_even_after_its_deadline():
    server = Server([ok(listing(item("there")))], [(200, [], True)])
    async with server.connection() as kubernetes:
        seen = await wait_for(kubernetes, NODES, lambda nodes: "there" in nodes or None, soon(-60))
        assert seen is True
        assert await wait_for(kubernetes, NODES, lambda _: None, soon(-60)) is None
    assert server.lists_answered == 2
