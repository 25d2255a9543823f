"""What each role's real token may do on a real API server: what it needs, and nothing that would hurt."""

import asyncio

import pytest

OURS = "gpu-runbooks"
TESTS = "gpu-runbooks-tests"
ELSEWHERE = "kube-system"
NODE_TASKS = "nodetasks.gpu-runbooks.dev"
NODE_CLAIMS = "nodeclaims.karpenter.sh"
NODE_POOLS = "nodepools.karpenter.sh"

NOT_INSTALLED = {NODE_CLAIMS, NODE_POOLS}
"""Resources of Karpenter, which brings them itself."""

NEEDS = {
    "intake": [("get", "nodes", ""), ("list", "nodes", ""), ("watch", "nodes", ""), ("list", "pods", "")],
    "cluster-worker": [
        ("get", "nodes", ""),
        ("list", "nodes", ""),
        ("watch", "nodes", ""),
        ("patch", "nodes", ""),
        ("delete", "nodes", ""),
        ("list", "pods", ""),
        ("watch", "pods", ""),
        ("patch", "pods", ELSEWHERE),
        ("delete", "pods", ELSEWHERE),
        ("get", "pods", TESTS),
        ("create", "pods", TESTS),
        ("delete", "pods", TESTS),
        ("create", "pods/eviction", ELSEWHERE),
        ("list", "poddisruptionbudgets.policy", ELSEWHERE),
        ("list", "events", "default"),
        ("create", "events.events.k8s.io", ELSEWHERE),
        ("list", NODE_CLAIMS, ""),
        ("watch", NODE_CLAIMS, ""),
        ("delete", NODE_CLAIMS, ""),
        ("get", NODE_POOLS, ""),
        ("list", "deployments.apps", ""),
        ("get", NODE_TASKS, OURS),
        ("list", NODE_TASKS, OURS),
        ("watch", NODE_TASKS, OURS),
        ("create", NODE_TASKS, OURS),
        ("delete", NODE_TASKS, OURS),
    ],
    "controller": [],
    "cloud-worker": [],
}

DANGEROUS = [
    ("*", "*", ""),
    ("create", "nodes", ""),
    ("update", "nodes", ""),
    ("deletecollection", "nodes", ""),
    ("patch", "nodes/status", ""),
    ("create", "nodes/proxy", ""),
    ("get", "pods", ELSEWHERE),
    ("get", "pods", OURS),
    ("create", "pods", OURS),
    ("create", "pods", ELSEWHERE),
    ("update", "pods", OURS),
    ("deletecollection", "pods", ELSEWHERE),
    ("create", "pods/exec", OURS),
    ("create", "pods/ephemeralcontainers", OURS),
    ("list", "events", ELSEWHERE),
    ("create", "events", "default"),
    ("patch", "events.events.k8s.io", "default"),
    ("get", "secrets", OURS),
    ("list", "secrets", ELSEWHERE),
    ("create", "serviceaccounts/token", OURS),
    ("patch", "nodetasks/status.gpu-runbooks.dev", OURS),
    ("patch", NODE_TASKS, OURS),
    ("create", NODE_TASKS, ELSEWHERE),
    ("patch", "deployments.apps", OURS),
    ("patch", "daemonsets.apps", ELSEWHERE),
    ("create", NODE_CLAIMS, ""),
    ("patch", NODE_CLAIMS, ""),
    ("deletecollection", NODE_CLAIMS, ""),
    ("patch", NODE_POOLS, ""),
    ("delete", NODE_POOLS, ""),
    ("delete", "poddisruptionbudgets.policy", ELSEWHERE),
    ("patch", "validatingadmissionpolicies.admissionregistration.k8s.io", ""),
    ("delete", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", ""),
    ("impersonate", "users", ""),
    ("impersonate", "serviceaccounts", OURS),
]

EVERYTHING_NEEDED = sorted({each for needs in NEEDS.values() for each in needs})


async def can(kubernetes, verb, resource, namespace):
    """Ask the API server with the caller's own token, as `kubectl auth can-i` does."""
    path, _, group = resource.partition(".")
    name, _, subresource = path.partition("/")
    attributes = {
        "verb": verb,
        "group": "*" if name == "*" else group,
        "resource": name,
        "subresource": subresource,
        "namespace": namespace,
    }
    answer = await kubernetes.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    return answer["status"]["allowed"]


@pytest.fixture(params=sorted(NEEDS))
async def role(request, applied):
    """A role's name, with a connection by its own token."""
    await applied.grant(request.param)
    async with applied.client(request.param) as kubernetes:
        yield request.param, kubernetes


async def test_a_role_may_do_what_it_needs_and_not_what_others_need(role):
    name, kubernetes = role
    answers = await asyncio.gather(*(can(kubernetes, *each) for each in EVERYTHING_NEEDED))
    allowed = {each for each, answer in zip(EVERYTHING_NEEDED, answers, strict=True) if answer}
    assert allowed == set(NEEDS[name])


async def test_no_role_may_do_what_would_hurt(role):
    _, kubernetes = role
    answers = await asyncio.gather(*(can(kubernetes, *each) for each in DANGEROUS))
    assert [each for each, answer in zip(DANGEROUS, answers, strict=True) if answer] == []


async def test_the_tables_ask_what_the_server_understands(applied):
    """A misspelt resource would be refused to everybody, and prove nothing."""
    async with applied.client("admin") as kubernetes:
        questions = [*EVERYTHING_NEEDED, *DANGEROUS]
        answers = await asyncio.gather(*(can(kubernetes, *each) for each in questions))
        served = await resources(kubernetes)
    assert all(answers)
    asked = {resource for _, resource, _ in questions} - {"*", "users"}
    assert asked <= served | NOT_INSTALLED


async def resources(kubernetes):
    """Everything that the API server serves, as `resource/subresource.group`."""
    groups = await kubernetes.request("GET", "/apis")
    paths = {"": "/api/v1"} | {
        each["name"]: f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups["groups"]
    }
    served = set()
    for group, path in paths.items():
        listed = await kubernetes.request("GET", path)
        served |= {f"{each['name']}{'.' if group else ''}{group}" for each in listed["resources"]}
    return served


async def test_the_roles_deployments_stand(applied):
    async with applied.client("admin") as kubernetes:
        deployments = await kubernetes.items(f"/apis/apps/v1/namespaces/{OURS}/deployments")
        agents = await kubernetes.items(f"/apis/apps/v1/namespaces/{OURS}/daemonsets")
    assert {each["metadata"]["name"] for each in deployments} == set(NEEDS)
    assert [each["metadata"]["name"] for each in agents] == ["node-agent"]
