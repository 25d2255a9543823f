"""The client on a real API server, by way of a proxy that does what networks and busy servers do."""

import asyncio
import stat
import time
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from cluster.conftest import until

from gpu_runbooks.activities.kubernetes import client as module
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError
from testbed.api_faults import (
    close_connection,
    delay,
    drip,
    half_a_chunk,
    hang,
    lose_answer,
    respond,
    status,
    stream,
)

NODES = "/api/v1/nodes"
EXPIRED = status(410, "Expired", "too old resource version: 100 (900)")
BOOKMARK = b'{"type":"BOOKMARK","object":{"kind":"Node","metadata":{"resourceVersion":"901"}}}\n'


@pytest.fixture
def impatient(monkeypatch):
    """Short limits, in the same order."""
    monkeypatch.setattr(module, "LIST_INTERVAL", 0.2)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.4)
    monkeypatch.setattr(module, "WATCH_TIMEOUT", 1.0)


async def cordon(admin, name):
    await admin.request(
        "PATCH", f"{NODES}/{name}", body={"spec": {"unschedulable": True}}, content_type=MERGE_PATCH
    )


async def test_calls_pass_through_unchanged(faulty, proxy, node):
    """The proxy itself: what it does not break is as it was, watches too."""
    name = node["metadata"]["name"]
    assert (await faulty.request("GET", f"{NODES}/{name}"))["metadata"]["uid"] == node["metadata"]["uid"]
    assert await faulty.find(f"{NODES}/no-such-node") is None
    following = faulty.follow(NODES, field_selector=f"metadata.name={name}")
    async with asyncio.timeout(60), aclosing(following) as states:
        async for nodes in states:
            if proxy.count(path=NODES, watch=True) == 0:
                assert set(nodes) == {node["metadata"]["uid"]}
            elif nodes[node["metadata"]["uid"]]["spec"].get("unschedulable"):
                break
            await faulty.request(
                "PATCH", f"{NODES}/{name}", body={"spec": {"unschedulable": True}}, content_type=MERGE_PATCH
            )
    assert proxy.count(path=NODES, watch=False) == 1


WATCH_FAULTS = [
    pytest.param(respond(410, EXPIRED), id="410 as a status"),
    pytest.param(
        stream([b'{"type":"ERROR","object":{"kind":"Status","code":410,"metadata":{}}}\n']),
        id="410 as an event, and the stream stays open",
    ),
    pytest.param(
        respond(500, status(500, "InternalError", 'resourceVersion: Invalid value: "None"')),
        id="500 with None",
    ),
    pytest.param(respond(429, "<html>", {"Retry-After": "abc"}), id="429"),
    pytest.param(respond(503, "", {"Retry-After": "0"}), id="503"),
    pytest.param(respond(200), id="an empty stream that is closed"),
    pytest.param(stream(), id="headers, then silence"),
    pytest.param(hang(), id="silence"),
    pytest.param(close_connection(), id="closed"),
    pytest.param(stream([BOOKMARK, b'{"type":"ADDED","obj'], then="close"), id="half a line, closed"),
    pytest.param(stream([BOOKMARK, b'{"type":"ADDED","obj'], then="hang"), id="half a line, open"),
    pytest.param(half_a_chunk(b'{"type":"ADDED","obj', then="close"), id="half a chunk, closed"),
    pytest.param(half_a_chunk(b'{"type":"ADDED","obj', then="hang"), id="half a chunk, open"),
    pytest.param(drip(), id="a drip without end of line"),
    pytest.param(drip(BOOKMARK, every=0.01), id="bookmarks beyond the server's own limit"),
]


@pytest.mark.parametrize("fault", WATCH_FAULTS)
async def test_what_a_broken_watch_misses_the_next_list_shows(impatient, faulty, proxy, admin, node, fault):
    uid, name = node["metadata"]["uid"], node["metadata"]["name"]
    rule = proxy.inject(fault, path=NODES, watch=True, times=None)
    following = faulty.follow(NODES, field_selector=f"metadata.name={name}")
    async with asyncio.timeout(60), aclosing(following) as states:
        assert set(await anext(states)) == {uid}
        await cordon(admin, name)
        async for nodes in states:
            if nodes[uid]["spec"].get("unschedulable"):
                break
    assert rule.met


@pytest.mark.parametrize("fault", WATCH_FAULTS)
async def test_a_watch_that_breaks_for_ever_is_asked_at_a_bounded_rate(impatient, faulty, proxy, node, fault):
    proxy.inject(fault, path=NODES, watch=True, times=None)
    clock, lists = asyncio.get_running_loop().time, 4
    started = clock()
    async with asyncio.timeout(60), aclosing(faulty.follow(NODES)) as states:
        async for _ in states:
            if proxy.count(path=NODES, watch=False) == lists:
                break
    assert clock() - started >= (lists - 1) * module.LIST_INTERVAL
    assert proxy.count(path=NODES, watch=True) <= REPEATED * (lists - 1)


REPEATED = 2
"""Calls that one read makes when its connection is closed: aiohttp repeats it once, on a new one."""


async def test_a_watch_goes_on_from_the_servers_bookmark(monkeypatch, faulty, proxy, admin, make_node):
    """The server ends it as it was asked to; meanwhile only what the watch does not show has changed."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 3)
    monkeypatch.setattr(module, "LIST_INTERVAL", 0.2)
    (followed, uid), (other, _) = [
        (each["metadata"]["name"], each["metadata"]["uid"]) for each in [await make_node(), await make_node()]
    ]

    async def change_other():
        while proxy.count(path=NODES, watch=True) < 3:
            body = {"metadata": {"annotations": {"example.com/changed": str(time.monotonic())}}}
            await admin.request("PATCH", f"{NODES}/{other}", body=body, content_type=MERGE_PATCH)
            await asyncio.sleep(0.3)
        await cordon(admin, followed)

    following = faulty.follow(
        NODES,
        field_selector=f"metadata.name={followed}",
        keep=lambda seen: seen["spec"].get("unschedulable", False),
        page_size=100,
        list_every=3600,
    )
    async with asyncio.timeout(60), asyncio.TaskGroup() as group, aclosing(following) as states:
        group.create_task(change_other())
        async for nodes in states:
            if nodes[uid]:
                break
    versions = [int(call.query["resourceVersion"]) for call in proxy.seen(path=NODES, watch=True)]
    assert proxy.count(path=NODES, watch=False) == 1
    assert versions == sorted(set(versions))
    assert len(versions) == 3


LIST_FAULTS = [
    pytest.param(respond(429, status(429, "TooManyRequests", "too many", retryAfterSeconds=0)), id="429"),
    pytest.param(respond(500, "<html>"), id="500"),
    pytest.param(respond(503, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), id="503 with a date"),
    pytest.param(respond(200, "<html>login</html>"), id="a login page"),
    pytest.param(respond(302, "", {"Location": "/login"}), id="a redirect"),
    pytest.param(respond(410, EXPIRED), id="410"),
    pytest.param(close_connection(), id="closed"),
    pytest.param(half_a_chunk(b'{"kind":"NodeList"', then="close"), id="half an answer"),
]


@pytest.mark.parametrize("fault", LIST_FAULTS)
async def test_lists_that_fail_for_ever_are_asked_ever_more_slowly(impatient, faulty, proxy, fault):
    calls = proxy.inject(fault, path=NODES, times=4 * REPEATED)
    proxy.inject(respond(404, status(404, "NotFound", "the end")), path=NODES)
    clock = asyncio.get_running_loop().time
    started = clock()
    async with asyncio.timeout(60):
        with pytest.raises(KubernetesError, match="the end"):
            await anext(faulty.follow(NODES))
    assert len(calls.met) == 4 * REPEATED
    assert clock() - started >= module.LIST_INTERVAL + 3 * module.LONGEST_PAUSE


@pytest.mark.parametrize("fault", [hang(), stream(), drip(), half_a_chunk(b"{"), delay(60)])
@pytest.mark.parametrize("method", ["GET", "PATCH", "POST"])
async def test_no_call_waits_for_ever(monkeypatch, faulty, proxy, fault, method):
    monkeypatch.setattr(module, "CALL_TIMEOUT", 0.5)
    proxy.inject(fault, times=None)
    async with asyncio.timeout(60):
        with pytest.raises(KubernetesError, match=r"no answer in 0\.5 s") as unanswered:
            await faulty.request(method, f"{NODES}/n", body={} if method != "GET" else None)
    assert (unanswered.value.status, proxy.count(method)) == (0, 1)


async def test_a_lost_answer_of_a_write_is_unknown_and_the_write_not_repeated(faulty, proxy, node):
    path = f"{NODES}/{node['metadata']['name']}"
    proxy.inject(lose_answer(), method="PATCH")
    with pytest.raises(KubernetesError) as lost:
        await faulty.request("PATCH", path, body={"spec": {"unschedulable": True}}, content_type=MERGE_PATCH)
    assert (lost.value.status, proxy.count("PATCH")) == (0, 1)
    assert (await faulty.request("GET", path))["spec"]["unschedulable"] is True


async def test_the_page_of_a_proxy_is_no_proof_that_an_object_is_gone(faulty, proxy):
    proxy.inject(respond(404, "404 page not found"))
    with pytest.raises(KubernetesError) as refused:
        await faulty.find(f"{NODES}/n")
    assert refused.value.status == 404


# --- credentials ------------------------------------------------------------------------------------


@pytest.fixture
async def rotating(control_plane, admin, kubernetes, proxy, tmp_path):
    """A kubeconfig with a token file, and what mints tokens for it that can be revoked."""
    secrets = "/api/v1/namespaces/gpu-runbooks/secrets"
    made = []

    async def mint():
        name = f"token-{len(made)}-{tmp_path.name}".lower().replace("_", "-")
        made.append(name)
        secret = await admin.request("POST", secrets, body={"metadata": {"name": name}})
        reference = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret["metadata"]["uid"]}
        spec = {"expirationSeconds": 3600, "boundObjectRef": reference}
        answer = await admin.request(
            "POST",
            "/api/v1/namespaces/gpu-runbooks/serviceaccounts/cluster-worker/token",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        return answer["status"]["token"]

    async def revoke(number):
        await admin.request("DELETE", f"{secrets}/{made[number]}")

    token_file = tmp_path / "token"
    content = yaml.safe_load(control_plane.kubeconfig_through(proxy, "cluster-worker").read_text())
    content["users"][0]["user"] = {"tokenFile": str(token_file)}
    kubeconfig = tmp_path / "kubeconfig.yaml"
    kubeconfig.write_text(yaml.safe_dump(content))
    yield mint, revoke, token_file, kubeconfig
    for name in made:
        if await admin.find(f"{secrets}/{name}"):
            await admin.request("DELETE", f"{secrets}/{name}")


async def ask_for_ever(connection, path):
    """The API server goes on trusting a token for seconds after it was revoked."""
    while True:
        await connection.request("GET", path)
        await asyncio.sleep(0.3)


async def test_a_rotated_token_is_read_from_its_file(rotating, proxy, admin, node):
    mint, revoke, token_file, kubeconfig = rotating
    path = f"{NODES}/{node['metadata']['name']}"
    token_file.write_text(await mint() + "\n")
    async with Kubernetes.connect(str(kubeconfig)) as connection:
        await connection.request("GET", path)
        await revoke(0)
        async with asyncio.timeout(60):
            with pytest.raises(KubernetesError) as refused:
                await ask_for_ever(connection, path)
        assert refused.value.status == 401
        assert str(kubeconfig) in refused.value.message

        token_file.write_text(await mint() + "\n")
        before = proxy.count("PATCH")
        patched = await connection.request(
            "PATCH", path, body={"spec": {"unschedulable": True}}, content_type=MERGE_PATCH
        )
        assert patched["spec"]["unschedulable"] is True
        assert proxy.count("PATCH") == before + 2
        await connection.request("GET", path)
        assert proxy.count("PATCH") == before + 2


async def test_many_calls_that_are_refused_at_once_read_the_token_once(rotating, proxy, node, tmp_path):
    """The plugin of a kubeconfig counts its runs; the proxy refuses the first token."""
    mint, _, _, kubeconfig = rotating
    tokens = [await mint(), await mint()]
    for number, token in enumerate(tokens):
        (tmp_path / f"token-{number}").write_text(token)
    plugin = tmp_path / "plugin"
    plugin.write_text(f"""#!/bin/sh
cd {tmp_path}; echo run >> runs; number=$(($(wc -l < runs) - 1)); [ $number -gt 1 ] && number=1
printf '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
printf '"status":{{"token":"%s"}}}}' "$(cat token-$number)"
""")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    use_plugin(kubeconfig, plugin)
    proxy.inject(
        respond(401, status(401, "Unauthorized", "Unauthorized")),
        authorization=f"Bearer {tokens[0]}",
        times=None,
    )
    path = f"{NODES}/{node['metadata']['name']}"
    async with Kubernetes.connect(str(kubeconfig)) as connection:
        calls = [connection.request("GET", path) for _ in range(30)]
        following = connection.follow(NODES, field_selector=f"metadata.name={node['metadata']['name']}")
        async with asyncio.timeout(60), aclosing(following) as states:
            answers, nodes = await asyncio.gather(asyncio.gather(*calls), anext(states))
    assert {answer["metadata"]["uid"] for answer in answers} == set(nodes)
    assert len((tmp_path / "runs").read_text().splitlines()) == 2


async def test_a_plugin_that_fails_later_leaves_the_old_token_in_use(rotating, proxy, node, tmp_path):
    mint, _, token_file, kubeconfig = rotating
    token_file.write_text(await mint())
    path = f"{NODES}/{node['metadata']['name']}"
    async with Kubernetes.connect(str(kubeconfig)) as connection:
        use_plugin(kubeconfig, Path("/bin/false"))
        proxy.inject(respond(401, status(401, "Unauthorized", "Unauthorized")))
        assert (await connection.request("GET", path))["metadata"]["uid"] == node["metadata"]["uid"]
    assert proxy.count("GET", path) == 2


def use_plugin(kubeconfig, plugin):
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    }
    kubeconfig.write_text(yaml.safe_dump(content))


async def test_a_token_that_is_refused_twice_is_a_clear_error_in_a_watch_too(faulty, proxy):
    unauthorized = respond(401, status(401, "Unauthorized", "Unauthorized"))
    proxy.inject(unauthorized, watch=True, times=2)
    async with asyncio.timeout(60), aclosing(faulty.follow(NODES)) as states:
        await anext(states)
        with pytest.raises(KubernetesError, match=r"credentials from kubeconfig .*, read again"):
            await anext(states)
    assert proxy.count(path=NODES, watch=True) == 2


async def test_a_watch_goes_on_after_one_401(faulty, proxy, admin, node):
    proxy.inject(respond(401, status(401, "Unauthorized", "Unauthorized")), watch=True)
    cordoning = asyncio.create_task(
        until(faulty, NODES, node["metadata"]["name"], lambda seen: seen["spec"].get("unschedulable"))
    )
    async with asyncio.timeout(60):
        while proxy.count(path=NODES, watch=True) < 2:
            await asyncio.sleep(0.02)
    await cordon(admin, node["metadata"]["name"])
    await cordoning
    assert proxy.count(path=NODES, watch=False) == 1
