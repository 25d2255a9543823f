"""Building blocks of the policy tests."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy

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

DRAINED_FAULTS = """\
faults:
- {name: fell-off-the-bus, match: {source: xid, code: 79}, ladder: reset}
- {name: links-missing, match: {source: alert, code: LinksMissing}, ladder: reset}
"""


def fault(source: FaultSource, code: str, **more) -> Fault:
    written = {
        "source": source,
        "code": code,
        "first_seen": ONSET,
        "last_seen": ONSET,
        "fingerprint": f"{source}-{code}",
        "reporter": "test",
    }
    return Fault.model_validate({**written, **more})


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


def problems(file: str | bytes) -> list[str]:
    """All errors of a policy file that cannot be used."""
    with pytest.raises(PolicyError) as error:
        load_policy(file)
    return [str(problem) for problem in error.value.problems]
