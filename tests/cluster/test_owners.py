"""Which object a pod belongs to in the end, by what the controllers write into their pods."""

import pytest

from gpu_runbooks.activities.notices.gpu_pods import has_gpus
from gpu_runbooks.activities.notices.owners import is_same, job_of, top_owner


def pod(owner=None, **labels):
    references = []
    if owner is not None:
        api_version, kind, name = owner
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "not-its-controller", "uid": "u-0"},
            {"apiVersion": api_version, "kind": kind, "name": name, "uid": "u-1", "controller": True},
        ]
    return {
        "metadata": {
            "name": "p-0",
            "namespace": "team-a",
            "uid": "u-p",
            "labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()},
            "ownerReferences": references,
        }
    }


JOB = ("batch/v1", "Job", "train-w-0")


@pytest.mark.parametrize(
    ("subject", "expected", "uid"),
    [
        (pod(JOB), "Job team-a/train-w-0", "u-1"),
        (pod(("kubeflow.org/v1", "PyTorchJob", "llm")), "PyTorchJob team-a/llm", "u-1"),
        (pod(("apps/v1", "StatefulSet", "serve")), "StatefulSet team-a/serve", "u-1"),
        (
            pod(("apps/v1", "ReplicaSet", "serve-5d9f"), pod_template_hash="5d9f"),
            "Deployment team-a/serve",
            "",
        ),
        (
            pod(
                JOB,
                **{"jobset.sigs.k8s.io__jobset_name": "train", "jobset.sigs.k8s.io__jobset_uid": "u-js"},
            ),
            "JobSet team-a/train",
            "u-js",
        ),
        (
            pod(
                ("ray.io/v1", "RayCluster", "tune-raycluster-x"),
                **{"ray.io__originated_from_crd": "RayJob", "ray.io__originated_from_cr_name": "tune"},
            ),
            "RayJob team-a/tune",
            "",
        ),
        (
            pod(
                ("ray.io/v1", "RayCluster", "shared"),
                **{"ray.io__originated_from_crd": "RayCluster", "ray.io__originated_from_cr_name": "shared"},
            ),
            "RayCluster team-a/shared",
            "u-1",
        ),
        (pod(JOB, **{"training.kubeflow.org__job_name": "mpi"}), "MPIJob team-a/mpi", ""),
        (
            pod(("kubeflow.org/v1", "MPIJob", "mpi"), **{"training.kubeflow.org__job_name": "mpi"}),
            "MPIJob team-a/mpi",
            "u-1",
        ),
        (
            pod(("apps/v1", "StatefulSet", "lws-0"), **{"leaderworkerset.sigs.k8s.io__name": "lws"}),
            "LeaderWorkerSet team-a/lws",
            "",
        ),
        (pod(("batch.volcano.sh/v1alpha1", "Job", "vc")), "Job team-a/vc", "u-1"),
        (pod(**{"volcano.sh__job_name": "vc"}), "Job team-a/vc", ""),
        (pod(("apps/v1", "DaemonSet", "agent")), "DaemonSet team-a/agent", "u-1"),
    ],
)
def test_the_highest_owner_that_a_pod_tells_of(subject, expected, uid):
    owner = top_owner(subject)
    assert (str(owner), owner.uid) == (expected, uid)


def test_a_bare_pod_has_none():
    assert top_owner(pod()) is None
    assert job_of(pod()) is None


def test_what_runs_on_every_node_is_no_job():
    assert job_of(pod(("apps/v1", "DaemonSet", "agent"))) is None


def test_a_job_is_the_same_whether_a_pod_tells_its_uid_or_not():
    launcher = job_of(pod(JOB, **{"training.kubeflow.org__job_name": "mpi"}))
    worker = job_of(pod(("kubeflow.org/v1", "MPIJob", "mpi")))
    assert is_same(worker, launcher)
    assert not is_same(job_of(pod(JOB)), launcher)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {"nvidia.com/gpu": "8"}}, True),
        ({"requests": {"nvidia.com/gpu": 1}, "limits": None}, True),
        ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, True),
        ({"limits": {"nvidia.com/gpu.shared": "1"}}, True),
        ({"limits": {"nvidia.com/gpu": "0"}}, False),
        ({"limits": {"cpu": "4", "vpc.amazonaws.com/efa": "32"}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_who_has_gpus(resources, expected):
    assert has_gpus({"spec": {"containers": [{"name": "main", "resources": resources}]}}) is expected
