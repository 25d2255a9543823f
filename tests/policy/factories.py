"""Building blocks of the policy tests."""

from datetime import UTC, datetime

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity

ONSET = datetime(2026, 3, 1, 10, tzinfo=UTC)

SMALLEST = """\
mode: enforce
pools:
- name: p5
  selector: {gpu-runbooks.dev/pool: p5}
  budget: {max_unavailable: 3}
validation:
  test_pod: {image: "registry.example/gpu-test:1", command: [gpu-test, --all]}
"""
"""The least that a policy file must say."""

P5 = {"gpu-runbooks.dev/pool": "p5"}


def fault(source: FaultSource, code: str) -> Fault:
    return Fault(
        source=source,
        code=code,
        first_seen=ONSET,
        last_seen=ONSET,
        fingerprint=f"{source}-{code}",
        reporter="test",
    )


def node(instance_type: str = "p5.48xlarge") -> NodeIdentity:
    return NodeIdentity(
        name="gpu-a1",
        uid="0b1c",
        provider_id="aws:///eu-north-1a/i-0123456789abcdef0",
        instance_id="i-0123456789abcdef0",
        zone="eu-north-1a",
        instance_type=instance_type,
        boot_id="boot-1",
    )
