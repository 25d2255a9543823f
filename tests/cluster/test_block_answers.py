"""Every kind of answer of an API server, or of what stands before it, to every call of a block.

Whatever comes: the block ends verified or with an error of a clear type, foreign taints stay, nothing is
evicted, and once the fault is over the next attempt stands.
"""

import json
import uuid

import pytest
from cluster.blocks import OUR_TAINT, read, taints, unblock_request
from cluster.conftest import KEEP_OTHERS_OFF, block_request, until
from cluster.conftest import _is_ready as is_ready
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.kubernetes import client
from gpu_runbooks.activities.nodes.block import unblock
from gpu_runbooks.activities.nodes.node import identity_of, observe
from testbed.api_faults import close_connection, delay, drip, half_a_chunk, hang, lose_answer, respond, status
from testbed.nodes import gpu_node

NODE = "/api/v1/nodes/.*"
VERIFIED = "verified"

BUDGET = status(
    429,
    "TooManyRequests",
    "Cannot evict pod as it would violate the pod's disruption budget.",
    causes=[{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods"}],
)
BUSY = status(429, "TooManyRequests", "Too many requests, please try again later.", retryAfterSeconds=1)


def forbidden(message, **details):
    return respond(403, status(403, "Forbidden", message, **details))


KINDS = {
    "409": (respond(409, status(409, "Conflict", "the object has been modified")), VERIFIED),
    "a slow answer": (delay(0.3), VERIFIED),
    "429 of a budget": (respond(429, BUDGET), errors.UNAVAILABLE),
    "429 of priority and fairness": (respond(429, BUSY, {"Retry-After": "1"}), errors.UNAVAILABLE),
    "429 without Retry-After": (
        respond(429, "Too many requests, please try again later."),
        errors.UNAVAILABLE,
    ),
    "429 of a proxy": (respond(429, "<html>429</html>", {"Retry-After": "abc"}), errors.UNAVAILABLE),
    "429 with a date": (
        respond(429, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        errors.UNAVAILABLE,
    ),
    "500": (respond(500, status(500, "InternalError", "etcdserver: leader changed")), errors.UNAVAILABLE),
    "500 of a webhook": (
        respond(500, status(500, "InternalError", 'failed calling webhook "guard.example": refused')),
        errors.UNAVAILABLE,
    ),
    "500 as text": (respond(500, "internal error"), errors.UNAVAILABLE),
    "500 with None": (
        respond(500, status(500, "InternalError", 'resourceVersion: Invalid value: "None"')),
        errors.UNAVAILABLE,
    ),
    "502": (respond(502, "<html>Bad gateway</html>"), errors.UNAVAILABLE),
    "503": (respond(503, "", {"Retry-After": "2"}), errors.UNAVAILABLE),
    "504": (respond(504, status(504, "Timeout", "request did not complete")), errors.UNAVAILABLE),
    "410": (respond(410, status(410, "Expired", "too old resource version")), errors.UNAVAILABLE),
    "404 of a proxy": (respond(404, "404 page not found"), errors.UNAVAILABLE),
    "a redirect": (respond(302, "", {"Location": "/login"}), errors.UNAVAILABLE),
    "403 of RBAC": (
        forbidden('nodes "x" is forbidden: User "u" cannot patch resource "nodes" in API group ""'),
        errors.FORBIDDEN,
    ),
    "403 of a webhook": (
        forbidden('admission webhook "guard.example" denied the request: frozen'),
        errors.FORBIDDEN,
    ),
    "403 of a quota": (forbidden("exceeded quota: compute, requested: pods=1"), errors.FORBIDDEN),
    "403 of a terminating namespace": (
        forbidden("it is being terminated", causes=[{"reason": "NamespaceTerminating"}]),
        errors.FORBIDDEN,
    ),
    "403 of a proxy": (respond(403, "<html>403</html>"), errors.FORBIDDEN),
    "400": (respond(400, "name in URL does not match"), errors.REJECTED),
    "422": (respond(422, status(422, "Invalid", "ValidatingAdmissionPolicy")), errors.REJECTED),
    "no answer": (hang(), errors.UNAVAILABLE),
    "a closed connection": (close_connection(), errors.UNAVAILABLE),
    "half a chunk": (half_a_chunk(b'{"kind":"Node"'), errors.UNAVAILABLE),
    "half a chunk, closed": (half_a_chunk(b'{"kind":"Node"', then="close"), errors.UNAVAILABLE),
    "a drip": (drip(), errors.UNAVAILABLE),
    "a lost answer": (lose_answer(), errors.UNAVAILABLE),
    "401": (respond(401, status(401, "Unauthorized", "Unauthorized")), errors.UNAVAILABLE),
}

TIMES = {"401": 2}
"""Calls that meet the fault, where one is not enough: a 401 is asked again with new credentials."""

CALLS = {"the read": ("GET", 0), "the write": ("PATCH", 0), "the read back": ("GET", 1)}

BROKEN_READS = {"a closed connection", "a lost answer"}
"""A read whose connection breaks is repeated by aiohttp at once, and meets the fault a second time."""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(client, "CALL_TIMEOUT", 1.0)
    monkeypatch.setattr("gpu_runbooks.activities.nodes.block.PAUSE", 0.0)


@pytest.fixture(scope="module")
async def one_node(admin):
    """One node for all kinds: each has to leave it as it was, with its foreign taints."""
    name = f"gpu-{uuid.uuid4().hex[:8]}"
    body = gpu_node(name, f"i-{uuid.uuid4().hex[:17]}", pool=f"pool-{name}")
    body["spec"]["taints"] = [KEEP_OTHERS_OFF, {"key": "example.com/theirs", "effect": "NoSchedule"}]
    await admin.request("POST", "/api/v1/nodes", body=body)
    yield await until(admin, "/api/v1/nodes", name, is_ready)
    await admin.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_block_is_verified_or_fails_by_name(admin, faulty, proxy, one_node, call, kind):
    (method, skip), (fault, expected) = CALLS[call], KINDS[kind]
    if kind == "409" and method == "GET":
        expected = errors.UNAVAILABLE  # no read conflicts
    times = 2 if kind in BROKEN_READS and method == "GET" else TIMES.get(kind, 1)
    identity = identity_of(one_node)
    foreign = taints(await read(admin, identity.name))
    rule = proxy.inject(fault, method=method, path=NODE, skip=skip, times=times)

    block_node = Cluster(faulty, lambda *_: None, "gpu-runbooks").block_node
    request = block_request(identity)
    outcome = await outcome_of(ActivityEnvironment().run(block_node, request))
    assert outcome == (expected, expected in {errors.FORBIDDEN, errors.REJECTED})
    assert len(rule.met) == times
    seen = await read(admin, identity.name)
    assert taints(seen).items() >= foreign.items()
    if expected == VERIFIED:
        assert observe(seen, request.incident).blocked
    elif call == "the read":
        assert proxy.count("PATCH") == 0

    result = await ActivityEnvironment().run(block_node, request)
    seen = await read(admin, identity.name)
    assert observe(seen, request.incident).blocked
    assert taints(seen) == foreign | {OUR_TAINT: request.rule}
    assert not result.marker.was_unschedulable
    assert proxy.count("POST", ".*/eviction") == 0
    assert all(json.loads(patch.body)["metadata"]["resourceVersion"] for patch in proxy.seen("PATCH"))

    await unblock(admin, unblock_request(identity))
    assert taints(await read(admin, identity.name)) == foreign


async def outcome_of(blocking):
    """Type of the error, and whether it is for good."""
    try:
        await blocking
    except ApplicationError as error:
        return error.type, error.non_retryable
    return VERIFIED, False
