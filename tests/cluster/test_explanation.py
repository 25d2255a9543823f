"""Refusals of the API server as the person on call reads them: who denied what, and what to mend."""

import json

import pytest

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import translated
from gpu_runbooks.activities.kubernetes.error import error_of
from testbed.api_faults import status

WORKER = "system:serviceaccount:gpu-runbooks:cluster-worker"
CALL = "PATCH /api/v1/nodes/gpu-1"


def refused(code, reason, message, headers=None, **details):
    body = json.dumps(status(code, reason, message, **details)).encode()
    return translated(error_of(code, headers or {}, body, CALL))


def rbac(verb, resource, group="", where="at the cluster scope", user=WORKER):
    return (
        f'{resource} "x" is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}" {where}'
    )


@pytest.mark.parametrize(
    ("message", "named"),
    [
        pytest.param(
            rbac("patch", "nodes"),
            ["verb `patch` on resource `nodes`", "`gpu-runbooks-cluster-worker`", "can-i patch nodes --as="],
            id="cluster scope",
        ),
        pytest.param(
            rbac("create", "pods/eviction", where='in the namespace "team-blue"'),
            ["ClusterRole of", "`pods/eviction`", "--subresource=eviction --namespace=team-blue --as="],
            id="a subresource in another namespace",
        ),
        pytest.param(
            rbac("create", "nodetasks", "gpu-runbooks.dev", where='in the namespace "gpu-runbooks"'),
            [
                "the Role `cluster-worker` in namespace `gpu-runbooks`",
                "can-i create nodetasks.gpu-runbooks.dev",
            ],
            id="the own namespace",
        ),
        pytest.param(rbac("list", "pods", user="ana"), ["bound to `ana`"], id="a person"),
        pytest.param(rbac("list", "pods", user="system:anonymous"), ["no credentials"], id="nobody"),
        pytest.param(
            'admission webhook "guard.example" denied the request: User "x" cannot patch resource "nodes" '
            'in API group ""',
            ['webhook "guard.example" denies'],
            id="a webhook that talks like RBAC",
        ),
        pytest.param(
            "nodes \"x\" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request",
            ["ValidatingAdmissionPolicy freeze, bound by all,"],
            id="an admission policy",
        ),
        pytest.param(
            "nodes \"x\" is forbidden: MutatingAdmissionPolicy 'freeze' denied request",
            ["MutatingAdmissionPolicy freeze denies"],
            id="a mutating admission policy",
        ),
        pytest.param(
            'pods "x" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=9',
            ["ResourceQuota compute"],
            id="a quota",
        ),
        pytest.param(
            "unable to create new content in namespace ci-7 because it is being terminated",
            ["namespace is being deleted"],
            id="a terminating namespace",
        ),
        pytest.param(
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged',
            ["Pod Security admission (restricted:latest)"],
            id="pod security",
        ),
        pytest.param(
            "something new", ["authorization or admission forbids"], id="a plugin that nobody knows"
        ),
    ],
)
def test_who_forbids_is_named(message, named):
    error = refused(403, "Forbidden", message)
    assert (error.type, error.non_retryable) == (errors.FORBIDDEN, True)
    for words in [*named, message]:
        assert words in error.message


def test_an_admission_policy_that_calls_the_request_invalid_is_named():
    error = refused(
        422, "Invalid", "ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: no"
    )
    assert error.type == errors.REJECTED
    assert "ValidatingAdmissionPolicy freeze" in error.message


@pytest.mark.parametrize(
    ("code", "message", "named"),
    [
        (401, "Unauthorized", "refuses our token"),
        (409, "the object has been modified", "Someone else changed"),
        (429, "too many requests", "too busy for us"),
        (
            500,
            'failed calling webhook "guard.example": connection refused',
            'webhook "guard.example" cannot be',
        ),
        (500, "etcdserver: leader changed", "an error of its own"),
        (503, "shutting down", "an error of its own"),
    ],
)
def test_what_may_pass_says_what_it_is(code, message, named):
    error = refused(code, "", message)
    assert (error.type, error.non_retryable) == (errors.UNAVAILABLE, False)
    assert named in error.message


def test_advice_is_not_cut_off_behind_long_words():
    error = refused(403, "Forbidden", "y" * 10_000)
    assert len(error.message) <= errors.LONGEST_MESSAGE
    assert error.message.startswith("The API server's authorization")


@pytest.mark.parametrize(
    "content", [b"<html>403</html>", b"", b'"denied"', b"[]", b"\xff\xfe", b"[" * 100_000]
)
def test_a_body_that_is_no_status_is_an_error_all_the_same(content):
    error = translated(error_of(403, {}, content, CALL))
    assert error.type == errors.FORBIDDEN
    assert "something before it" in error.message
