"""How many recorded faults a second `gpu-runbooks policy diff` replays: the whole command, file to report.

A month of a large fleet: 100,000 faults of 1,000 nodes in four pools, of some 70 kinds, most of them frequent
ones. The seed is fixed, so that two runs replay the same file.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workers.policy.recorded_faults import RecordedFault

EVENTS = 100_000
NODES = 1_000
SEED = 20260301
MONTH = timedelta(days=30)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)

TYPES = {"p5": "p5.48xlarge", "p4d": "p4d.24xlarge", "g6": "g6.48xlarge", "p5en": "p5en.48xlarge"}
XIDS = (13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 123, 143, 144, 145, 149, 154, 155)
SXIDS = (10003, 11001, 12028, 14017, 19084, 20009, 20034, 22013, 24001, 26001)
CONDITIONS = {
    "AcceleratedHardwareReady": ("NvidiaXID79Error", "NvidiaDoubleBitError", "DCGMError"),
    "Ready": ("NodeStatusUnknown", "KubeletNotReady"),
    "NetworkingReady": ("InterfaceNotUp", "IPAMDNotRunning"),
    "KernelReady": ("ForkFailedOutOfPIDs",),
}
ALERTS = ("GpuFellOff", "GpuThermal", "NcclTimeout", "EfaDown")

OLD = "mode: enforce\npools:\n" + "".join(
    f"- {{name: {pool}, selector: {{gpu-runbooks.dev/pool: {pool}}}, budget: {{max_unavailable: 3}}}}\n"
    for pool in TYPES
) + """\
faults:
- {name: fell-off, match: {source: alert, code: GpuFellOff}, ladder: reset}
validation:
  test_pod: {image: gpu-load-test, command: [gpu-load-test, --all]}
"""  # fmt: skip

NEW = OLD.replace(
    "validation:",
    """\
- {name: bus, match: {source: xid, code: 79}, ladder: reboot}
- {name: cold, match: {source: condition, code: Ready}, ladder: block, toleration: 15m}
validation:""",
)


def measure() -> dict[str, float]:
    """Replay the faults once, by the command as a person types it, on one core."""
    with tempfile.TemporaryDirectory(prefix="gpu-runbooks-diff-") as directory:
        folder = Path(directory)
        (folder / "old.yaml").write_text(OLD)
        (folder / "new.yaml").write_text(NEW)
        with (folder / "events.jsonl").open("w") as file:
            file.writelines(f"{event.model_dump_json(exclude_defaults=True)}\n" for event in generate())
        began = time.perf_counter()
        ended = subprocess.run(
            [
                Path(sys.executable).with_name("gpu-runbooks"),
                *("policy", "diff", "old.yaml", "new.yaml", "--events", "events.jsonl"),
            ],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        took = time.perf_counter() - began
        if ended.returncode != 2 or f"{EVENTS} recorded faults" not in ended.stdout:
            raise RuntimeError(f"the replay ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return {"diff_events_per_second": EVENTS / took}


def generate(events: int = EVENTS) -> Iterator[RecordedFault]:
    """The faults of a month, in the order of time."""
    chance = random.Random(SEED)  # noqa: S311 - the same file each time
    pools = [chance.choice(list(TYPES)) for _ in range(NODES)]
    moments = sorted(chance.random() for _ in range(events))
    return (_event(chance, pools, BEGIN + moment * MONTH) for moment in moments)


def _event(chance: random.Random, pools: list[str], moment: datetime) -> RecordedFault:
    number = chance.randrange(NODES)
    pool = pools[number]
    return RecordedFault(
        cluster="bench",
        node=f"gpu-{number:04}",
        labels={"gpu-runbooks.dev/pool": pool, "node.kubernetes.io/instance-type": TYPES[pool]},
        instance_type=TYPES[pool],
        fault=_fault(chance, number, moment),
        pool=pool,
        policy_digest="0123456789abcdef",
        incident=f"node/bench/gpu-{number:04}",
        run_id=f"run-{chance.randrange(10**9)}",
    )


def _fault(chance: random.Random, node: int, moment: datetime) -> Fault:
    gpu = Entity(
        kind="gpu",
        uuid=f"GPU-{node:08x}-0000-0000-0000-00000000000{chance.randrange(8)}",
        pci_address="0000:4c:00",
    )
    said = Fault(
        source=FaultSource.XID,
        code=str(chance.choice(XIDS)),
        entity=gpu,
        place=chance.choice(("", "GPC 0 TPC 1", "GPC 2 TPC 1")),
        before=chance.choice((0, 0, 0, 1, 2)),
        pod=chance.choice(("", f"train/worker-{chance.randrange(400)}")),
        boot_id=f"boot-{node}",
        summary=f"fault number {chance.randrange(10**6)}",
        first_seen=moment,
        last_seen=moment,
        fingerprint=f"{chance.getrandbits(80):020x}",
        reporter="node-agent",
    )
    kind = chance.random()
    if kind < 0.6:
        return said
    if kind < 0.7:
        switch = Entity(kind="nvswitch", pci_address="0000:86:00")
        return said.model_copy(
            update={
                "source": FaultSource.SXID,
                "code": str(chance.choice(SXIDS)),
                "entity": switch,
                "grade": chance.choice(("fatal", "nonfatal")),
            }
        )
    if kind < 0.9:
        condition = chance.choice(list(CONDITIONS))
        return said.model_copy(
            update={
                "source": FaultSource.CONDITION,
                "code": condition,
                "entity": Entity(),
                "status": chance.choice(("False", "Unknown")),
                "reason": chance.choice(CONDITIONS[condition]),
            }
        )
    return said.model_copy(
        update={"source": FaultSource.ALERT, "code": chance.choice(ALERTS), "entity": Entity()}
    )
