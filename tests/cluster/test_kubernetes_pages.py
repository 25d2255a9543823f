"""Collections that come in pages, and watches that go on where the last one ended."""

import asyncio
import itertools
import json
import tracemalloc
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from cluster.misbehaving_server import EXPIRED, NODES, Server, event, item, listing, ok

from gpu_runbooks.activities.kubernetes import client as module
from gpu_runbooks.activities.kubernetes import lines
from gpu_runbooks.activities.kubernetes.client import KubernetesError


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
