"""Which pods a drain leaves, waits for or evicts, and the words for those that do not go."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.draining.budgets import budget_of, selects
from gpu_runbooks.activities.draining.pods import (
    belongs_to_node,
    containers_ended,
    has_finished,
    protections,
    proven_finished,
    termination,
    tolerates_block,
)
from gpu_runbooks.activities.model.drain import BlockerReason, DrainPolicy

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)


def pod(phase="Running", **metadata):
    base = {"name": "p", "namespace": "blue", "uid": "u"}
    return {"metadata": base | metadata, "spec": {"containers": []}, "status": {"phase": phase}}


def owned(kind, *, controller=True):
    return [{"kind": kind, "name": "o", "uid": "x", "controller": controller}]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (pod(), False),  # a bare pod leaves too
        (pod(ownerReferences=owned("ReplicaSet")), False),
        (pod(ownerReferences=owned("Job")), False),
        (pod(ownerReferences=owned("DaemonSet")), True),
        (pod(ownerReferences=owned("DaemonSet", controller=False)), False),
        (pod(ownerReferences=owned("Node")), True),
        (pod(annotations={"kubernetes.io/config.mirror": "abc"}), True),
    ],
)
def test_who_belongs_to_the_node(subject, expected):
    assert belongs_to_node(subject) is expected


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Succeeded", True), ("Failed", True), ("Pending", False), ("Running", False), ("Unknown", False)],
)
def test_who_has_finished(phase, expected):
    assert has_finished(pod(phase)) is expected


STILL = [{"name": "c", "state": {"running": {}}}]


@pytest.mark.parametrize(
    ("changes", "ready", "proven"),
    [
        ({}, "True", True),
        ({}, "Unknown", True),  # it had ended before
        ({"containerStatuses": STILL}, "True", False),
        ({"initContainerStatuses": STILL}, "True", False),
        ({"containerStatuses": [{"name": "c", "state": {"terminated": {}}}, None]}, "True", True),
    ],
)
@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_phase_alone_proves_no_end(changes, ready, proven, phase):
    subject = pod(phase)
    subject["status"] |= changes
    assert proven_finished(subject, ready) is proven


@pytest.mark.parametrize(("ready", "proven"), [("True", True), ("False", False), ("Unknown", False)])
def test_deleted_pod_of_a_node_that_is_not_ready_has_not_finished(ready, proven):
    assert proven_finished(pod("Failed", deletionTimestamp=PAST), ready) is proven


def protection(subject, policy=None, **more):
    return next(protections(subject, policy or DrainPolicy(), NOW, **more), None)


@pytest.mark.parametrize(
    ("annotations", "protected"),
    [
        ({"karpenter.sh/do-not-disrupt": "true"}, True),
        ({"karpenter.sh/do-not-disrupt": "True"}, True),
        ({"karpenter.sh/do-not-disrupt": "false"}, False),
        ({"karpenter.sh/do-not-disrupt": ""}, False),
        ({"karpenter.sh/do-not-disrupt": "2h"}, True),  # it started an hour ago
        ({"karpenter.sh/do-not-disrupt": "1h30m"}, True),
        ({"karpenter.sh/do-not-disrupt": "5m"}, False),
        ({"karpenter.sh/do-not-disrupt": "99999999999999h"}, True),
        ({"karpenter.sh/do-not-disrupt": "soon"}, False),
        ({"karpenter.sh/do-not-evict": "true"}, True),
        ({"karpenter.sh/do-not-evict": "2h"}, False),  # durations are the newer annotation's
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, False),
        ({"gpu-runbooks.dev/do-not-disrupt": "true"}, True),
        ({}, False),
    ],
)
def test_annotations_that_protect(annotations, protected):
    subject = pod(annotations=annotations)
    subject["status"]["startTime"] = "2026-03-01T09:00:00Z"
    obstacle = protection(subject)
    assert (obstacle is not None) is protected
    if obstacle:
        assert obstacle.reason is BlockerReason.DO_NOT_DISRUPT
        assert obstacle.names == tuple(annotations)


def test_protection_for_a_time_has_an_end():
    subject = pod(annotations={"karpenter.sh/do-not-disrupt": "1h30m"})
    subject["status"]["startTime"] = "2026-03-01T09:00:00Z"
    assert protection(subject).until == datetime(2026, 3, 1, 10, 30, tzinfo=UTC)
    subject["status"].pop("startTime")
    assert protection(subject).until > NOW


def test_site_decides_which_annotations_protect():
    subject = pod(annotations={"karpenter.sh/do-not-disrupt": "true", "example.com/keep": "yes"})
    policy = DrainPolicy(protecting={"example.com/keep": ("yes",)})
    assert protection(subject, policy).names == ("example.com/keep",)
    assert protection(subject, DrainPolicy(protecting={})) is None


def test_what_the_drain_runs_on_is_essential():
    temporal = pod(labels={"app.kubernetes.io/name": "temporal"}, ownerReferences=owned("ReplicaSet"))
    assert protection(temporal).reason is BlockerReason.ESSENTIAL
    assert protection(temporal, DrainPolicy(essential=())) is None


def test_bare_pods_and_lost_volumes_block_where_policy_says_so():
    bare, data = pod(), pod(ownerReferences=owned("ReplicaSet"))
    data["spec"]["volumes"] = [{"name": "cache", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]
    strict = DrainPolicy(bare_pods="block", empty_dir="block")
    assert protection(bare) is None
    assert protection(data) is None
    assert protection(bare, strict).reason is BlockerReason.BARE_POD
    assert protection(data, strict).names == ("cache",)
    assert protection(bare, bare_stays=True).reason is BlockerReason.BARE_POD
    assert protection(data, bare_stays=True) is None


PAST, FUTURE = "2026-03-01T08:00:00Z", "2026-03-01T10:05:00Z"


@pytest.mark.parametrize(
    ("metadata", "ready", "reason", "named"),
    [
        ({"deletionTimestamp": FUTURE}, "True", "terminating", ()),
        ({"deletionTimestamp": FUTURE, "finalizers": ["a/b"]}, "True", "terminating", ()),
        ({"deletionTimestamp": PAST, "finalizers": ["a/b"]}, "True", "finalizer", ("a/b",)),
        (
            {"deletionTimestamp": FUTURE, "deletionGracePeriodSeconds": 0, "finalizers": ["a/b"]},
            "Unknown",  # the kubelet said before that the containers ended
            "finalizer",
            ("a/b",),
        ),
        ({"deletionTimestamp": PAST, "finalizers": ["a/b"]}, "Unknown", "dead-kubelet", ()),
        ({"deletionTimestamp": PAST, "deletionGracePeriodSeconds": 30}, "Unknown", "dead-kubelet", ()),
        ({"deletionTimestamp": FUTURE}, "Unknown", "dead-kubelet", ()),
        ({"deletionTimestamp": PAST}, "False", "dead-kubelet", ()),
        ({"deletionTimestamp": PAST}, "True", "not-ended", ()),
        ({"deletionTimestamp": "9999-12-31T23:59:59Z"}, "True", "terminating", ()),
    ],
)
def test_why_a_terminating_pod_is_still_there(metadata, ready, reason, named):
    obstacle = termination(pod(**metadata), ready, NOW)
    assert (obstacle.reason, obstacle.names) == (reason, named)


SINCE = datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("metadata", "ready", "since", "words"),
    [
        ({"deletionTimestamp": PAST}, "True", datetime(2026, 3, 1, 8, tzinfo=UTC), "kubelet has not"),
        (
            {"deletionTimestamp": PAST, "finalizers": ["a/b"]},
            "True",
            datetime(2026, 3, 1, 8, tzinfo=UTC),
            "finalizer a/b",
        ),
        ({"deletionTimestamp": PAST}, "Unknown", SINCE, "the node is silent (Ready=Unknown)"),
        ({"deletionTimestamp": FUTURE}, "False", SINCE, "the node is not Ready (Ready=False)"),
    ],
)
def test_since_when_a_terminating_pod_should_be_gone(metadata, ready, since, words):
    obstacle = termination(pod(**metadata), ready, NOW, SINCE)
    assert obstacle.since == since
    assert words in obstacle.message


def test_forced_deletion_is_no_word_of_a_silent_node():
    forced = pod(deletionTimestamp=PAST, deletionGracePeriodSeconds=0, finalizers=["a/b"])
    forced["status"]["containerStatuses"] = STILL
    assert termination(forced, "Unknown", NOW).reason == "dead-kubelet"
    assert termination(forced, "True", NOW).reason == "finalizer"


def test_node_of_a_dead_kubelet_is_named():
    subject = pod(deletionTimestamp=PAST)
    subject["spec"]["nodeName"] = "gpu-a1"
    assert termination(subject, "Unknown", NOW).names == ("gpu-a1",)


def test_odd_budget_is_named_all_the_same():
    odd = {"metadata": {"name": "web"}, "spec": None, "status": {"currentHealthy": "many"}}
    assert (budget_of(odd).name, budget_of(odd).healthy) == ("web", 0)


def container(name, state):
    return {"name": name, "state": {state: {}}}


@pytest.mark.parametrize(
    ("statuses", "ended"),
    [
        (
            {"containerStatuses": [container("c", "terminated")]},
            False,
        ),  # nothing is said of the init container
        ({"containerStatuses": [container("c", "running")]}, False),
        ({}, False),
        (
            {
                "containerStatuses": [container("c", "terminated")],
                "initContainerStatuses": [container("i", "terminated")],
            },
            True,
        ),
        (
            {
                "containerStatuses": [container("c", "terminated")],
                "initContainerStatuses": [container("i", "running")],  # a sidecar
            },
            False,
        ),
    ],
)
def test_every_container_has_to_be_reported_as_ended(statuses, ended):
    subject = pod()
    subject["spec"] = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}
    subject["status"] = statuses
    assert containers_ended(subject) is ended


def test_debug_container_has_to_end_too():
    subject = pod()
    subject["spec"] = {"containers": [{"name": "c"}], "ephemeralContainers": [{"name": "debug"}]}
    subject["status"] = {"containerStatuses": [container("c", "terminated")]}
    assert not containers_ended(subject)


@pytest.mark.parametrize(
    ("tolerations", "tolerates"),
    [
        ([{"operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "gpu-runbooks.dev/remediation", "operator": "Exists"}], False),
        ([], False),
        ([None], False),
        ([None, {"operator": "Exists"}], True),
        (
            [
                {"key": "gpu-runbooks.dev/remediation", "operator": "Exists"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            ],
            True,
        ),
    ],
)
def test_who_ignores_our_block(tolerations, tolerates):
    subject = pod()
    subject["spec"]["tolerations"] = tolerations
    assert tolerates_block(subject) is tolerates


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "api"}}, False),
        ({"matchLabels": {"app": "web", "tier": "front"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Unheard"}]}, True),
        ({"matchExpressions": [None]}, True),
        ({"matchExpressions": [7]}, True),
        ({"matchLabels": ["app"]}, True),
    ],
)
def test_which_budget_selects_a_pod(selector, selected):
    assert selects(selector, {"app": "web"}) is selected
