"""Building blocks of the ledger's tests: one machine with two GPUs, and what was done to it."""

from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.model.ledger import PastRepair
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.activities.model.plan import RungName

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)

A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
OLD, NEW = "i-0000000000000000a", "i-0000000000000000b"


def identity(instance_id: str = OLD) -> NodeIdentity:
    return NodeIdentity(
        name="gpu-a1",
        uid="uid-1",
        provider_id=f"aws:///eu-north-1a/{instance_id}",
        instance_id=instance_id,
        zone="eu-north-1a",
        instance_type="p5.48xlarge",
        boot_id="boot-1",
    )


def facts(*uuids: str, serials: tuple[str | None, ...] = ("1", "2", "3"), board="77") -> HardwareFacts:
    gpus = (
        GpuFacts(index=index, uuid=uuid, pci_address=f"0000:4{index}:00", serial=serial, board=board)
        for index, (uuid, serial) in enumerate(zip(uuids, serials, strict=False))
    )
    return HardwareFacts(gpus=tuple(gpus))


def repair(
    rung: RungName,
    hardware: tuple[str, ...],
    ago: timedelta = timedelta(hours=1),
    *,
    proven: bool = True,
    incident: str = "node/prod/gpu-a1",
    run_id: str = "run-1",
    now: datetime = NOW,
) -> PastRepair:
    return PastRepair(
        rung=rung,
        proven=proven,
        ended=now - ago,
        hardware=hardware,
        incident=incident,
        run_id=run_id,
    )
