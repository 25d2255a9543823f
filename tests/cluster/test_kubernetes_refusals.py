"""What the client makes of refusals, wishes to wait, silence, and answers that are none."""

import json
from datetime import UTC, datetime

import pytest
from aiohttp import web
from cluster.conftest import soon
from cluster.misbehaving_server import NODES, Server, item, listing, ok

from gpu_runbooks.activities.kubernetes import client as module
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.kubernetes.connection import limits
from gpu_runbooks.activities.kubernetes.error import LONGEST_RETRY_AFTER, error_of, seconds_asked
from gpu_runbooks.activities.kubernetes.waiting import wait_for


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
