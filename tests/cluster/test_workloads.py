"""What a pod is to its owners, and which rule is for it."""

from datetime import timedelta

import pytest

from gpu_runbooks.activities.draining.workloads import fits, owner_of, rule_for, workload_of
from gpu_runbooks.activities.model.drain import (
    DrainMethod,
    DrainPolicy,
    PodRule,
    PodSelector,
    Workload,
    WorkloadSelector,
)


def pod(kind="", namespace="blue", *, labels=None, priority="", name="o"):
    owners = [{"kind": kind, "name": name, "uid": "x", "controller": True}] if kind else []
    metadata = {"name": "p", "namespace": namespace, "uid": "u", "labels": labels, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"priorityClassName": priority}}


@pytest.mark.parametrize(
    ("subject", "workload"),
    [
        (pod("Job"), Workload.TRAINING),
        (pod("JobSet"), Workload.TRAINING),
        (pod("PyTorchJob"), Workload.TRAINING),
        (pod("MPIJob"), Workload.TRAINING),
        (pod("TrainJob"), Workload.TRAINING),
        (pod("RayCluster"), Workload.TRAINING),
        (pod("RayCluster", labels={"ray.io/originated-from-crd": "RayJob"}), Workload.TRAINING),
        (pod("RayCluster", labels={"ray.io/originated-from-crd": "RayService"}), Workload.INFERENCE),
        (pod("Widget", labels={"jobset.sigs.k8s.io/jobset-name": "j"}), Workload.TRAINING),
        (pod("ReplicaSet"), Workload.INFERENCE),
        (pod("StatefulSet"), Workload.INFERENCE),
        (pod("LeaderWorkerSet"), Workload.INFERENCE),
        (pod("ReplicaSet", "kube-system"), Workload.INFRASTRUCTURE),
        (pod("ReplicaSet", "nvidia-network-operator"), Workload.INFRASTRUCTURE),
        (pod("Job", priority="system-node-critical"), Workload.INFRASTRUCTURE),
        (pod("Widget"), Workload.OTHER),
        (pod(), Workload.OTHER),
        (pod("StatefulSet", labels={"gpu-runbooks.dev/workload": "training"}), Workload.TRAINING),
        (pod("Job", "kube-system", labels={"gpu-runbooks.dev/workload": "inference"}), Workload.INFERENCE),
        (pod("Job", labels={"gpu-runbooks.dev/workload": "unheard-of"}), Workload.TRAINING),
    ],
)
def test_what_a_pod_is(subject, workload):
    assert workload_of(subject, DrainPolicy()) is workload


def test_site_says_it_before_the_built_in_kinds_and_after_the_pod_itself():
    policy = DrainPolicy(
        workloads=(
            WorkloadSelector(owners=("StatefulSet",), namespaces=("ml-*",), workload=Workload.TRAINING),
            WorkloadSelector(owners=("StatefulSet",), workload=Workload.INFRASTRUCTURE),
        )
    )
    assert workload_of(pod("StatefulSet", "ml-blue"), policy) is Workload.TRAINING
    assert workload_of(pod("StatefulSet", "blue"), policy) is Workload.INFRASTRUCTURE
    said = pod("StatefulSet", "ml-blue", labels={"gpu-runbooks.dev/workload": "other"})
    assert workload_of(said, policy) is Workload.OTHER


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (PodSelector(), False),
        (PodSelector(namespaces=("b*",)), True),
        (PodSelector(namespaces=("red",)), False),
        (PodSelector(labels={"app": "web"}), True),
        (PodSelector(labels={"app": "web", "tier": "x"}), False),
        (PodSelector(owners=("Deployment",)), True),
        (PodSelector(owners=("Job",)), False),
        (PodSelector(namespaces=("blue",), labels={"app": "web"}, owners=("Deployment",)), True),
        (PodSelector(namespaces=("blue",), labels={"app": "web"}, owners=("Job",)), False),
    ],
)
def test_selectors(selector, selected):
    assert fits(selector, pod("ReplicaSet", labels={"app": "web"})) is selected


def test_a_selector_by_owner_selects_no_bare_pod():
    assert not fits(PodSelector(owners=("Deployment",)), pod())


def test_replica_set_is_shown_as_its_deployment():
    owner = owner_of(pod("ReplicaSet", labels={"pod-template-hash": "5d9"}, name="web-5d9"))
    assert str(owner) == "Deployment web"


def test_first_rule_that_fits_decides():
    later = timedelta(hours=1)
    ml = PodRule(name="ml", namespaces=("ml-*",), method=DrainMethod.CHECKPOINT_THEN_EVICT, deadline=later)
    training = PodRule(
        name="training",
        workloads=(Workload.TRAINING,),
        method=DrainMethod.WAIT_FOR_COMPLETION,
        deadline=later,
    )
    policy = DrainPolicy(rules=(ml, training))
    assert rule_for(pod("Job", "ml-blue"), Workload.TRAINING, policy) is ml
    assert rule_for(pod("Job"), Workload.TRAINING, policy) is training
    assert rule_for(pod("ReplicaSet"), Workload.INFERENCE, policy) is None
