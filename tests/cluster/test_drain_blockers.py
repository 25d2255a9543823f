"""What keeps a drain from ending, each produced on a real API server, or by a proxy before it."""

import asyncio
import json
import uuid
from datetime import timedelta

import pytest
from cluster.conftest import drain_request, pod_names, until

from gpu_runbooks.activities.draining import calls as drain_calls
from gpu_runbooks.activities.draining import eviction as drain_eviction
from gpu_runbooks.activities.draining import outlook as drain_outlook
from gpu_runbooks.activities.draining import state as drain_state
from gpu_runbooks.activities.draining import step as drain_step
from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.kubernetes import client
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError
from gpu_runbooks.activities.model.drain import DrainPolicy
from testbed.api_faults import hang, lose_answer, respond, status
from testbed.nodes import reboot_annotations

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
EVICTION = ".*/pods/{}/eviction"


async def make_budget(admin, namespace, name, labels, **spec):
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}} | spec}
    await admin.request("POST", BUDGETS.format(namespace), body=body)
    await until(
        admin,
        BUDGETS.format(namespace),
        name,
        lambda budget: (budget or {}).get("status", {}).get("observedGeneration") == 1,
    )


async def blocked_by(kubernetes, request, **more):
    """The only blocker of a drain that ends blocked."""
    report = await drain(kubernetes, request, **more)
    assert report.result.outcome == "blocked"
    (blocker,) = report.result.blockers
    return blocker


async def patch(admin, path, body):
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def pod_path(namespace, name):
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


async def become_unready(admin, namespace, name):
    body = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await patch(admin, f"{pod_path(namespace, name)}/status", body)


async def test_unhealthy_pod_behind_its_budget(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await become_unready(admin, namespace, "web-1")
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=3))
    assert (blocker.reason, blocker.names) == ("unhealthy-behind-budget", ("web",))
    assert "web needs 1 and has 0" in blocker.message
    assert "AlwaysAllow" in blocker.message


async def test_unhealthy_pod_leaves_where_its_budget_allows_it(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await become_unready(admin, namespace, "web-1")
    allow = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1, **allow)
    assert (await drain(kubernetes, drain_request(blocked))).result.outcome == "drained"


async def test_pods_of_a_terminating_namespace_are_waited_for(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("ci-1", blocked.name, finalizers=["example.com/flush"])
    await admin.request("DELETE", f"/api/v1/namespaces/{namespace}")
    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked)))
    path = f"/api/v1/namespaces/{namespace}/pods"
    await until(admin, path, "ci-1", lambda pod: pod is not None and "deletionTimestamp" in pod["metadata"])
    assert not draining.done()
    await patch(admin, pod_path(namespace, "ci-1"), {"metadata": {"finalizers": None}})
    report = await draining
    assert (report.result.outcome, report.result.gone) == ("drained", 1)


async def test_eviction_refused_in_a_terminating_namespace_is_no_missing_right(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("ci-1", blocked.name)
    cause = {"reason": "NamespaceTerminating", "message": "going"}
    refusal = status(403, "Forbidden", "pods ci-1 is forbidden: it is being terminated", causes=[cause])
    proxy.inject(respond(403, refusal), method="POST", path=EVICTION.format("ci-1"), times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=3))
    assert blocker.reason == "namespace-terminating"


async def test_policy_that_denies_is_named_and_not_bypassed(admin, kubernetes, blocked, namespace, make_pod):
    name = f"frozen-{namespace}"
    here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/eviction"],
    }
    group = "/apis/admissionregistration.k8s.io/v1"
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {"matchExpressions": [here]}},
        "validations": [{"expression": "false", "message": "no evictions this week"}],
    }
    await admin.request(
        "POST", f"{group}/validatingadmissionpolicies", body={"metadata": {"name": name}, "spec": spec}
    )
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await admin.request(
        "POST",
        f"{group}/validatingadmissionpolicybindings",
        body={"metadata": {"name": name}, "spec": binding},
    )
    try:
        await make_pod("web-1", blocked.name)
        await _denies(admin, namespace, "web-1")
        blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=3))
        assert (blocker.reason, blocker.names) == ("denied", (name,))
        assert "no evictions this week" in blocker.message
        assert await pod_names(admin, namespace) == {"web-1"}
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            await admin.request("DELETE", f"{group}/{kind}/{name}")


async def _denies(admin, namespace, name):
    """Wait until the server knows its new policy: dry runs change nothing."""
    async with asyncio.timeout(60):
        while True:
            try:
                await admin.request(
                    "POST",
                    f"{pod_path(namespace, name)}/eviction",
                    body={
                        "apiVersion": "policy/v1",
                        "kind": "Eviction",
                        "metadata": {"name": name, "namespace": namespace},
                        "deleteOptions": {"dryRun": ["All"]},
                    },
                    query={"dryRun": "All"},
                )
            except KubernetesError as error:
                if "ValidatingAdmissionPolicy" in error.message:
                    return
                raise
            await asyncio.sleep(0.1)


async def test_silent_node_ends_the_drain_early_and_nothing_is_forced(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("db-0", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "600"})
    down = reboot_annotations(600, str(uuid.uuid4())) | {"gpu-runbooks.dev/reboot-outcome": "never"}
    await patch(admin, f"/api/v1/nodes/{blocked.name}", {"metadata": {"annotations": down}})
    await until(
        admin,
        "/api/v1/nodes",
        blocked.name,
        lambda node: any(
            each["type"] == "Ready" and each["status"] != "True"
            for each in (node or {})["status"]["conditions"]
        ),
    )
    request = drain_request(blocked, seconds=120, policy=DrainPolicy(silent_node=timedelta(seconds=2)))
    async with asyncio.timeout(60):
        blocker = await blocked_by(faulty, request)
    assert blocker.reason == "dead-kubelet"
    assert blocker.attempts == 1
    assert proxy.count("DELETE") == 0
    assert await pod_names(admin, namespace) == {"db-0"}


def owned_set(name, kind, node, *, bound):
    """A workload that ignores cordon and taint: its pods are bound by their template, or tolerate all."""
    place = {"nodeName": node} if bound else {"nodeSelector": {"kubernetes.io/hostname": node}}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}, "annotations": {"gpu-runbooks.dev/stop-seconds": "0"}},
            "spec": place
            | {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "registry.example/app:1"}],
            },
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("kind", "bound"), [("StatefulSet", False), ("ReplicaSet", True)])
async def test_owner_that_ignores_the_block_never_counts_as_drained(
    admin, kubernetes, blocked, namespace, kind, bound
):
    path = f"/apis/apps/v1/namespaces/{namespace}/{kind.lower()}s"
    await admin.request("POST", path, body=owned_set("db", kind, blocked.name, bound=bound))
    try:
        await until(admin, path, "db", lambda each: (each or {}).get("status", {}).get("readyReplicas") == 1)
        report = await drain(kubernetes, drain_request(blocked, seconds=20))
        assert report.result.outcome == "blocked"
        (blocker,) = report.result.blockers
        assert blocker.reason == "respawning"
        owner = "Deployment db" if kind == "ReplicaSet" else "StatefulSet db"
        assert blocker.names == (owner,)
        assert report.result.gone >= 3
    finally:
        await admin.request("DELETE", f"{path}/db")


async def test_busy_server_is_no_budget_and_the_pod_leaves(faulty, proxy, blocked, make_pod):
    await make_pod("web-1", blocked.name)
    busy = respond(429, status(429, "TooManyRequests", "busy", retryAfterSeconds=1), {"Retry-After": "1"})
    proxy.inject(busy, method="POST", path=EVICTION.format("web-1"), times=2)
    seen = set()
    report = await drain(
        faulty,
        drain_request(blocked),
        beat=lambda beat: seen.update(each["reason"] for each in beat["blockers"]),
    )
    assert report.result.outcome == "drained"
    assert report.pods[0].evictions == 3
    assert "budget" not in seen


@pytest.mark.parametrize(
    ("fault", "reason", "names"),
    [
        (respond(500, status(500, "InternalError", "etcdserver: request timed out")), "api-server", ()),
        (respond(502, "<html>Bad gateway</html>"), "api-server", ()),
        (
            respond(500, status(500, "InternalError", 'failed calling webhook "guard.example": EOF')),
            "denied",
            ("guard.example",),
        ),
        (
            respond(
                403, status(403, "Forbidden", 'admission webhook "guard.example" denied the request: no')
            ),
            "denied",
            ("guard.example",),
        ),
        (
            respond(
                429,
                status(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod",
                    causes=[
                        {
                            "reason": "DisruptionBudget",
                            "message": "The disruption budget web is still being processed by the server.",
                        }
                    ],
                ),
            ),
            "budget-not-observed",
            ("web",),
        ),
        (
            respond(429, status(429, "TooManyRequests", "it would violate the pod's disruption budget.")),
            "budget",
            (),
        ),
        (respond(429, "<html>429</html>", {"Retry-After": "abc"}), "throttled", ()),
        (
            respond(429, status(429, "TooManyRequests", "busy", retryAfterSeconds=10**400)),
            "throttled",
            (),
        ),
        (respond(408, "<html>Request Timeout</html>"), "api-server", ()),
        (respond(201, ""), "not-deleted", ()),  # a dry run in disguise
    ],
)
async def test_every_refusal_has_its_reason_and_holds_up_no_other_pod(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch, fault, reason, names
):
    for module in (drain_outlook, drain_step):
        monkeypatch.setattr(module, "DELETION_DUE", 2.0)
    await make_pod("web-1", blocked.name)
    await make_pod("free", blocked.name)
    proxy.inject(fault, method="POST", path=EVICTION.format("web-1"), times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=4))
    assert (blocker.name, blocker.reason, blocker.names) == ("web-1", reason, names)
    assert await pod_names(admin, namespace) == {"web-1"}
    assert proxy.count("DELETE") == 0


async def test_eviction_whose_answer_is_lost_counts_as_what_the_pod_shows(faulty, proxy, blocked, make_pod):
    # It takes its time to end, so that it is seen to.
    await make_pod("web-1", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "2"})
    proxy.inject(lose_answer(), method="POST", path=EVICTION.format("web-1"))
    result = (await drain(faulty, drain_request(blocked))).result
    assert (result.outcome, result.evicted) == ("drained", 1)


async def test_calls_that_hang_keep_no_other_pod_waiting(faulty, proxy, admin, blocked, namespace, make_pod):
    for number in range(4):
        await make_pod(f"stuck-{number}", blocked.name)
    await make_pod("free", blocked.name)
    proxy.inject(hang(), method="POST", path=EVICTION.format("stuck-.*"), times=None)
    draining = asyncio.create_task(drain(faulty, drain_request(blocked, seconds=6)))
    await until(admin, f"/api/v1/namespaces/{namespace}/pods", "free", lambda pod: pod is None)
    assert not draining.done()
    assert (await draining).result.blocked_total == 4


async def test_list_that_fails_or_hides_something_is_not_empty(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name)
    odd = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": "half"}}],
    }
    proxy.inject(respond(200, odd), path="/api/v1/pods", watch=False, skip=1, times=None)
    result = (await drain(faulty, drain_request(blocked, seconds=6))).result
    assert (result.outcome, result.gone, result.blocked_total) == ("blocked", 1, 1)
    assert "cannot be read" in result.message


async def test_failed_list_is_asked_again(faulty, proxy, blocked, make_pod):
    await make_pod("web-1", blocked.name)
    proxy.inject(respond(500), path="/api/v1/pods", watch=False, skip=1, times=1)
    assert (await drain(faulty, drain_request(blocked))).result.outcome == "drained"


async def test_one_eviction_for_each_pod_and_few_lists(faulty, proxy, blocked, make_pod):
    for number in range(20):
        await make_pod(f"worker-{number}", blocked.name)
    assert (await drain(faulty, drain_request(blocked))).result.evicted == 20
    assert proxy.count("POST", EVICTION.format(".*")) == 20
    assert proxy.count("GET") <= 8  # the node; list and watch of node and pods; the last list
    assert proxy.count("GET", ".*poddisruptionbudgets") == 0


async def test_pod_leaves_by_itself_once_one_of_its_two_budgets_goes(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch
):
    monkeypatch.setattr(drain_eviction, "ATTEMPTS_AGAINST_TWO_BUDGETS", 1)
    for module in (drain_state, drain_calls):
        monkeypatch.setattr(module, "LOOK_AT_BUDGETS", 1.0)
    await make_pod("web-1", blocked.name, labels={"app": "web", "tier": "front"})
    await make_budget(admin, namespace, "by-app", {"app": "web"}, minAvailable=0)
    await make_budget(admin, namespace, "by-tier", {"tier": "front"}, minAvailable=0)
    looked = asyncio.Event()

    def beat(_):
        if proxy.count("GET", ".*poddisruptionbudgets") >= 3:
            looked.set()

    draining = asyncio.create_task(drain(faulty, drain_request(blocked), beat=beat))
    await looked.wait()
    assert proxy.count("POST", EVICTION.format("web-1")) == 1
    await admin.request("DELETE", f"{BUDGETS.format(namespace)}/by-tier")
    result = (await draining).result
    assert (result.outcome, result.evicted) == ("drained", 1)
    assert proxy.count("POST", EVICTION.format("web-1")) == 2


async def test_budgets_that_may_not_be_listed_are_said_to_be_unknown(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web", "tier": "front"})
    await make_budget(admin, namespace, "by-app", {"app": "web"}, minAvailable=0)
    await make_budget(admin, namespace, "by-tier", {"tier": "front"}, minAvailable=0)
    words = (
        'poddisruptionbudgets.policy is forbidden: User "w" cannot list resource "poddisruptionbudgets" in '
        f'API group "policy" in the namespace "{namespace}"'
    )
    refusal = respond(403, status(403, "Forbidden", words))
    proxy.inject(refusal, method="GET", path=".*poddisruptionbudgets", times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=3))
    assert (blocker.reason, blocker.names) == ("two-budgets", ())
    assert "lacks verb `list` on `poddisruptionbudgets`" in blocker.message


async def test_grace_period_that_runs_at_the_deadline_is_waited_for(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("slow", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "8"})
    request = drain_request(blocked, seconds=3)
    report = await drain(kubernetes, request)
    assert (report.result.outcome, report.result.evicted) == ("drained", 1)
    assert report.pods[0].gone > request.deadline
    assert await pod_names(admin, namespace) == set()


async def test_pod_that_does_not_leave_gets_no_more_than_its_grace_period(kubernetes, blocked, make_pod):
    await make_pod(
        "stuck",
        blocked.name,
        spec={"terminationGracePeriodSeconds": 2},
        annotations={"gpu-runbooks.dev/stop-seconds": "600"},
    )
    async with asyncio.timeout(60):
        blocker = await blocked_by(kubernetes, drain_request(blocked, seconds=1))
    assert (blocker.name, blocker.reason) == ("stuck", "not-ended")


async def test_worker_that_takes_over_goes_on_from_the_last_beat(
    admin, kubernetes, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    for number in range(3):
        await make_pod(f"free-{number}", blocked.name)
    request = drain_request(blocked, seconds=60)
    beats, refused = [], asyncio.Event()

    def beat(said):
        beats.append(json.loads(json.dumps(said)))  # as it travels
        if said["gone"] == 3 and _attempts(said) >= 2:
            refused.set()

    draining = asyncio.create_task(drain(kubernetes, request, beat=beat))
    await refused.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    last, later, refused_again = beats[-1], [], asyncio.Event()

    def beat_again(said):
        later.append(said)
        if _attempts(said) > _attempts(last):
            refused_again.set()

    again = asyncio.create_task(drain(kubernetes, request, beat=beat_again, last_beat=last))
    await refused_again.wait()
    assert later[-1]["blockers"][0]["since"] == last["blockers"][0]["since"]
    await admin.request("DELETE", f"{BUDGETS.format(namespace)}/web")
    result = (await again).result
    assert (result.outcome, result.gone, result.evicted) == ("drained", 4, 4)


def _attempts(said):
    return sum(each["attempts"] for each in said["blockers"])


@pytest.mark.parametrize(
    ("conditions", "outcomes"),
    [
        ([None, {"type": "Ready", "status": "True", "lastTransitionTime": "no date"}], {"drained"}),
        (
            [{"type": "Ready", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59-01:00"}],
            {"drained"},
        ),
        (7, {"drained", "blocked"}),  # by what the watch says of the node in time
    ],
)
async def test_odd_node_ends_no_drain(faulty, proxy, admin, blocked, make_pod, conditions, outcomes):
    await make_pod("web-1", blocked.name)
    node = await admin.request("GET", f"/api/v1/nodes/{blocked.name}")
    node["status"]["conditions"] = conditions
    # the watch goes on from here: an older version would show the node before it was blocked
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
    listing = {"kind": "NodeList", "metadata": version, "items": [node]}
    proxy.inject(respond(200, node), method="GET", path=f"/api/v1/nodes/{blocked.name}", times=None)
    proxy.inject(respond(200, listing), method="GET", path="/api/v1/nodes", watch=False, times=None)
    assert (await drain(faulty, drain_request(blocked, seconds=10))).result.outcome in outcomes


async def test_odd_pods_end_no_drain_of_the_others(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch
):
    monkeypatch.setattr(client, "WATCH_TIMEOUT", 2.0)
    await make_pod("web-1", blocked.name)
    pods = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    for number, changes in enumerate(
        [
            {"metadata": {"deletionTimestamp": "9999-12-31T23:59:59Z"}},
            {"spec": {"tolerations": [None], "volumes": [{"emptyDir": {}}]}},
        ]
    ):
        odd = json.loads(json.dumps(pods["items"][0]))
        odd["metadata"] |= {"name": f"odd-{number}", "uid": f"odd-{number}"} | changes.get("metadata", {})
        odd["spec"] |= changes.get("spec", {})
        pods["items"].append(odd)
    pods["kind"] = "PodList"
    proxy.inject(respond(200, pods), method="GET", path="/api/v1/pods", watch=False)
    proxy.inject(hang(), watch=True, path="/api/v1/pods")
    report = await drain(faulty, drain_request(blocked, seconds=60))
    assert (report.result.outcome, report.result.gone) == ("drained", 3)
    assert {pod.name: pod.end for pod in report.pods if pod.gone}["web-1"] == "evicted"


async def test_incident_is_told_what_is_in_the_way(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_budget(admin, namespace, "web", {"app": "web"}, minAvailable=1)
    told = []

    async def on_progress(progress):
        told.append(progress)
        raise RuntimeError("Temporal is away")

    request = drain_request(blocked, seconds=8)
    blocker = await blocked_by(kubernetes, request, on_progress=on_progress)
    assert blocker.reason == "budget"
    (progress,) = told
    assert (progress.started, progress.remaining) == (request.started, 1)
    assert progress.blockers[0].names == ("web",)
