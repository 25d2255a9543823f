"""Which pods hold the GPU of a fault."""

import pytest
from incident.plans import fault

from gpu_runbooks.activities.model.fault import Entity
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.workflows.holders import HoldersUnknownError, pods_holding

FACTS = HardwareFacts(
    gpus=(
        GpuFacts(index=0, uuid="GPU-0", pci_address="0000:53:00", pod_uids=("a",), host_processes=0),
        GpuFacts(index=1, uuid="GPU-1", pci_address="0000:64:00", pod_uids=("b", "a"), host_processes=0),
        GpuFacts(index=2, uuid="GPU-2", pci_address="0000:75:00", pod_uids=(), host_processes=0),
        GpuFacts(index=3, uuid="GPU-3", pci_address="0000:86:00", host_processes=0),
        GpuFacts(index=4, pod_uids=("c",), host_processes=0),
        GpuFacts(index=5, uuid="GPU-5", pod_uids=(), host_processes=2),
        GpuFacts(index=6, uuid="GPU-6", pod_uids=("a",), host_processes=None),
        GpuFacts.model_construct(
            index=7, uuid="GPU-7", pod_uids=tuple(map(str, range(70))), host_processes=0
        ),
    )
)


def of(**entity):
    return fault("31").model_copy(update={"entity": Entity(kind="gpu", **entity)})


@pytest.mark.parametrize(
    ("entities", "pods"),
    [
        ([{"uuid": "GPU-0"}], ("a",)),
        ([{"pci_address": "0000:64:00"}], ("b", "a")),
        ([{"uuid": "GPU-0"}, {"uuid": "GPU-1"}], ("a", "b")),
        ([{"uuid": "GPU-2"}], ()),
        ([], ()),
    ],
)
def test_the_pods_of_the_gpus_that_are_named(entities, pods):
    assert pods_holding(FACTS, [of(**entity) for entity in entities]) == pods


@pytest.mark.parametrize(
    ("facts", "entity", "word"),
    [
        (FACTS, {}, "names no GPU"),
        (None, {"uuid": "GPU-0"}, "measured nothing"),
        (FACTS, {"uuid": "GPU-9"}, "does not see"),
        (FACTS, {"uuid": "GPU-9", "pci_address": "0000:53:00"}, "does not see"),
        (FACTS, {"uuid": "GPU-3"}, "cannot say"),
        (FACTS, {"uuid": "GPU-5"}, "processes of the host"),
        (FACTS, {"uuid": "GPU-6"}, "cannot say"),
        (FACTS, {"uuid": "GPU-7"}, "70 pods"),
    ],
)
def test_nothing_is_guessed(facts, entity, word):
    with pytest.raises(HoldersUnknownError, match=word):
        pods_holding(facts, [of(**entity)])
