"""Which tasks an agent must not touch: a table."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.model.node_task import NodeTaskKind
from gpu_runbooks.workers.node_agent.node_task import NodeTask, ended, objection, read
from gpu_runbooks.workers.node_agent.own_node import OwnNode

NODE = OwnNode("n1", "uid-1", expected=None)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def task(phase=None, **changes):
    spec = {
        "nodeName": "n1",
        "nodeUID": "uid-1",
        "bootID": "boot-1",
        "kind": "ResetGPU",
        "incident": "node/c/n1",
        "startDeadline": "2026-03-01T12:01:00Z",
        "deadline": "2026-03-01T12:10:00Z",
        **changes,
    }
    status = {"phase": phase} if phase else {}
    return {"metadata": {"name": "t", "uid": "u"}, "spec": spec, "status": status}


def test_a_task_of_this_node_boot_and_time_is_taken():
    parsed = read(task(gpuUUID="GPU-1", gpuPCIAddress="0000:53:00"))
    assert isinstance(parsed, NodeTask)
    assert parsed.spec.kind is NodeTaskKind.RESET_GPU
    assert (parsed.spec.gpu_uuid, parsed.spec.gpu_pci_address) == ("GPU-1", "0000:53:00")
    assert objection(parsed, NODE, "boot-1", NOON) is None


@pytest.mark.parametrize(
    ("changes", "boot_id", "words"),
    [
        ({"nodeName": "n2"}, "boot-1", "for node n2"),
        ({"nodeUID": "uid-0"}, "boot-1", "UID uid-0"),
        ({"bootID": "boot-0"}, "boot-1", "for boot boot-0"),
        ({}, None, "boot id"),
        ({"startDeadline": "2026-03-01T11:59:59Z"}, "boot-1", "had to be started by"),
        ({"deadline": "2026-03-01T11:59:59Z"}, "boot-1", "has passed"),
    ],
)
def test_a_task_of_another_machine_boot_or_time_is_refused(changes, boot_id, words):
    assert words in objection(read(task(**changes)), NODE, boot_id, NOON)


def test_a_task_that_is_running_may_be_late_to_start_but_not_to_end():
    late = {"startDeadline": "2026-03-01T11:00:00Z"}
    assert objection(read(task("Running", **late)), NODE, "boot-1", NOON) is None
    over = {**late, "deadline": "2026-03-01T11:30:00Z"}
    measuring = {**over, "kind": "Measure"}
    assert objection(read(task("Running", **measuring)), NODE, "boot-1", NOON) is not None
    # What the reset took away is to be restored, however late.
    assert objection(read(task("Running", **over)), NODE, "boot-1", NOON) is None
    assert "boot" in objection(read(task("Running", **late)), NODE, "boot-2", NOON)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "Explode"}, "kind"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": "2026-03-01T12:10:00"}, "deadline"),
        ({"bootID": None}, "bootID"),
    ],
)
def test_a_task_that_cannot_be_read_says_which_field(changes, field):
    assert f"spec/{field}" in read(task(**changes))


def test_only_an_ended_task_is_ended():
    assert [ended(task(phase)) for phase in (None, "Running", "Succeeded", "Failed")] == [
        False,
        False,
        True,
        True,
    ]
