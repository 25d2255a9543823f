"""Which pods a drain leaves, waits for or evicts, and the words for those that do not go."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.budgets import selects
from gpu_runbooks.activities.pods import protection, stays, termination

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
        (pod("Succeeded"), True),
        (pod("Failed"), True),
        (pod("Pending"), False),
        (pod("Unknown"), False),
        (pod("Running", deletionTimestamp="2026-03-01T09:00:00Z"), False),
    ],
)
def test_who_stays(subject, expected):
    assert stays(subject) is expected


@pytest.mark.parametrize(
    ("annotations", "protected"),
    [
        ({"karpenter.sh/do-not-disrupt": "true"}, True),
        ({"karpenter.sh/do-not-disrupt": "false"}, False),
        ({"karpenter.sh/do-not-disrupt": ""}, False),
        ({"karpenter.sh/do-not-evict": "true"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, True),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, False),
        ({"gpu-runbooks.dev/do-not-disrupt": "true"}, True),
        ({}, False),
    ],
)
def test_annotations_that_protect(annotations, protected):
    reason = protection(pod(annotations=annotations), own_pod_uid="")
    assert (reason is not None) is protected
    if protected:
        assert next(iter(annotations)) in reason


def test_own_worker_is_protected():
    assert "worker" in protection(pod(), own_pod_uid="u")
    assert protection(pod(), own_pod_uid="another") is None


@pytest.mark.parametrize(
    ("metadata", "ready", "words"),
    [
        ({"deletionTimestamp": "2026-03-01T10:05:00Z"}, "True", "grace period ends at"),
        (
            {"deletionTimestamp": "2026-03-01T10:05:00Z", "finalizers": ["a/b"]},
            "True",
            "grace period ends at",
        ),
        (
            {"deletionTimestamp": "2026-03-01T08:00:00Z", "finalizers": ["a.example/flush"]},
            "True",
            "stuck on finalizer a.example/flush",
        ),
        (
            {
                "deletionTimestamp": "2026-03-01T10:00:00Z",
                "deletionGracePeriodSeconds": 0,
                "finalizers": ["a.example/flush"],
            },
            "True",
            "stuck on finalizer a.example/flush",
        ),
        ({"deletionTimestamp": "2026-03-01T08:00:00Z"}, "Unknown", "node is silent (Ready=Unknown)"),
        ({"deletionTimestamp": "2026-03-01T08:00:00Z"}, "True", "kubelet has not ended it"),
    ],
)
def test_why_a_terminating_pod_is_still_there(metadata, ready, words):
    assert words in termination(pod(**metadata), ready, NOW)


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
    ],
)
def test_which_budget_selects_a_pod(selector, selected):
    assert selects(selector, {"app": "web"}) is selected
