"""Whose machine it is: a node's provider id, type and zone against EC2, and the cluster's tag."""

import pytest
from cloud.conftest import (
    CLUSTER,
    OWNED,
    TYPE,
    ZONE,
    Wire,
    launch_alone,
    reboot_of,
    replacement_of,
    set_state,
)
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.cluster_tag import why_not_ours
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.ec2 import describe_machine
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.nodes.node import identity_of

OTHERS = {"kubernetes.io/cluster/other": "owned"}

NAMES = {
    # node name: how the machine is named
    "ip-10-4-7-21.eu-north-1.compute.internal": "private DNS name",
    "i-0aaaaaaaaaaaaaaa2": "instance id",
    "ip-10-4-7-23": "short name",
    "gpu-a1.corp.example": "name of a domain of the site's own",
}

FOREIGN = [
    "",
    "aws://",
    "aws:///",
    "aws:////i-0aaaaaaaaaaaaaaa1",
    "aws:///us-west-2a/",
    "aws:///us-west-2a/i-",
    "aws:///us-west-2a/i-0AAAAAAAAAAAAAAA1",
    "aws:///us-west-2a/i-0aaaaaaaaaaaaaaa1/",
    "aws:///us-west-2a/i-0aaaaaaaaaaaaaaa1\n",
    " aws:///us-west-2a/i-0aaaaaaaaaaaaaaa1",
    "aws:///us-west-2a/i-0aaaaaaaaaaaaaaa1,i-0aaaaaaaaaaaaaaa2",
    "aws:///usw2-az2/sagemaker/cluster/hyperpod-x-i-0aaaaaaaaaaaaaaa4",
    "aws:///eu-north-1/11112222-3333-4444-5555-666677778888/fargate-ip-10-4-7-9",
    "kwok://gpu-kwok-1",
    "kind://docker/kind/kind-worker",
    "gce://project/zone/i-0aaaaaaaaaaaaaaa1",
    "i-0aaaaaaaaaaaaaaa1",
]


def node_object(provider_id: str | None, name: str = "gpu-a1") -> dict[str, object]:
    labels = {"node.kubernetes.io/instance-type": TYPE, "kubernetes.io/hostname": name}
    spec = {} if provider_id is None else {"providerID": provider_id}
    return {"metadata": {"name": name, "uid": "u", "labels": labels}, "spec": spec, "status": {}}


@pytest.mark.parametrize("name", NAMES, ids=list(NAMES.values()))
async def test_the_provider_id_finds_the_machine_whatever_the_node_is_called(aws: Aws, name: str) -> None:
    machine = launch_alone(aws)

    found = await describe_machine(aws, identity_of(node_object(machine.provider_id, name)))

    assert (found.instance_id, found.zone) == (machine.instance_id, ZONE)


@pytest.mark.parametrize("provider_id", [None, *FOREIGN])
async def test_a_node_whose_provider_id_is_none_of_ec2s_is_left_alone(
    aws: Aws, wire: Wire, provider_id: str | None
) -> None:
    node = identity_of(node_object(provider_id))

    for act, request in (
        (Cloud(aws).reboot_instance, reboot_of),
        (Cloud(aws).replace_instance, replacement_of),
    ):
        with pytest.raises(ApplicationError, match="names no EC2 instance") as raised:
            await act(request(node))
        assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
    assert not wire.sent


@pytest.mark.parametrize(
    ("tags", "ours"),
    [
        ({f"kubernetes.io/cluster/{CLUSTER}": "owned"}, True),
        ({f"kubernetes.io/cluster/{CLUSTER}": "shared"}, True),
        ({f"kubernetes.io/cluster/{CLUSTER}": "shared", "kubernetes.io/cluster/other": "shared"}, True),
        ({"aws:eks:cluster-name": CLUSTER}, True),
        ({"eks:cluster-name": CLUSTER}, True),
        ({"eks:eks-cluster-name": CLUSTER}, True),
        (OWNED | {"eks:cluster-name": CLUSTER, "Name": "gpu"}, True),
        ({}, False),
        ({"Name": CLUSTER}, False),
        ({f"kubernetes.io/cluster/{CLUSTER}": "no"}, False),
        ({f"kubernetes.io/cluster/{CLUSTER}": ""}, False),
        ({f"kubernetes.io/cluster/{CLUSTER}-2": "owned"}, False),
        ({f"kubernetes.io/cluster/{CLUSTER.upper()}": "owned"}, False),
        ({"eks:cluster-name": f"{CLUSTER}-2"}, False),
        ({"kubernetes.io/cluster/other": "shared"}, False),
        (OWNED | OTHERS, False),
        (OWNED | {"aws:eks:cluster-name": "other"}, False),
        ({"aws:eks:cluster-name": CLUSTER, "eks:cluster-name": "other"}, False),
    ],
)
def test_whose_an_instance_is_by_its_tags(tags: dict[str, str], ours: bool) -> None:
    assert (why_not_ours(tags, CLUSTER) == "") is ours


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ({}, "it has no tag kubernetes.io/cluster/test"),
        (OTHERS, "its tag kubernetes.io/cluster/other=owned says that it belongs to another cluster"),
        ({"eks:cluster-name": "other"}, "its tag eks:cluster-name=other says"),
    ],
    ids=["none", "other-cluster", "other-eks-cluster"],
)
async def test_an_instance_that_is_not_the_clusters_is_left_alone(
    aws: Aws, wire: Wire, owner: dict[str, str], why: str
) -> None:
    node = launch_alone(aws, owner=owner)
    wire.sent.clear()

    for act, request in (
        (Cloud(aws).reboot_instance, reboot_of),
        (Cloud(aws).replace_instance, replacement_of),
    ):
        with pytest.raises(ApplicationError, match=why) as raised:
            await act(request(node))
        assert (raised.value.type, raised.value.non_retryable) == (errors.FORBIDDEN, True)
        assert node.instance_id in raised.value.message
        assert "tag it kubernetes.io/cluster/test=owned" in raised.value.message
        assert "GPU_RUNBOOKS_CLUSTER" in raised.value.message
    assert wire.sent == {"DescribeInstances": 2}


async def test_a_terminated_instance_may_have_lost_its_tags_but_not_gained_anothers(
    aws: Aws, wire: Wire
) -> None:
    bare, foreign = launch_alone(aws, owner={}), launch_alone(aws, owner=OTHERS)
    for node in (bare, foreign):
        wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, "terminated"))

    assert (await describe_machine(aws, bare)).state == "terminated"
    with pytest.raises(ApplicationError, match="another cluster"):
        await describe_machine(aws, foreign)


@pytest.mark.parametrize(
    "change",
    [{"zone": "us-west-2b"}, {"zone": ""}, {"instance_type": "p4d.24xlarge"}, {"instance_type": ""}],
    ids=["other-zone", "no-zone", "other-type", "no-type"],
)
async def test_type_and_zone_must_be_the_nodes(aws: Aws, change: dict[str, str]) -> None:
    node: NodeIdentity = launch_alone(aws).model_copy(update=change)

    with pytest.raises(ApplicationError, match="not the node's machine") as raised:
        await describe_machine(aws, node)

    assert (raised.value.type, raised.value.non_retryable) == (errors.INSTANCE_UNKNOWN, True)
