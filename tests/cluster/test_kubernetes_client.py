"""Lists and watches of the client against servers that misbehave on the wire."""

import json
from contextlib import aclosing

import pytest
from cluster.misbehaving_server import EXPIRED, NODES, Server, event, item, listing, ok, seen_after

from gpu_runbooks.activities.kubernetes.client import KubernetesError


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
