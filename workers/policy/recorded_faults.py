"""Recorded faults: one JSON object per line, as `policy record` writes and `policy diff` reads it.

All of a file is data that anybody may have written: it is validated, never run, and printed only in part.
"""

from collections.abc import Iterator
from typing import BinaryIO

from pydantic import Field, ValidationError

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.plan import FaultReport, Treatment
from gpu_runbooks.activities.model.wire import Wire

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"

LONGEST_LINE = 16 * 1024
"""Bytes, as of a payload, which holds more than is kept of it. Most lines have some 1,500."""


class RecordedFault(Wire):
    """A fault that an incident took in, and what policy said of it then."""

    cluster: str = ""
    node: str = Field(min_length=1, max_length=253)
    labels: dict[str, str]
    """Those that selected the pool, with type and zone: a plan holds no others of the node."""
    instance_type: str
    fault: Fault
    pool: str = ""
    treatment: Treatment | None = None
    """What the policy of that time prescribed."""
    policy_digest: str = ""
    incident: str = ""
    run_id: str = ""


class BrokenLineError(ValueError):
    """A line of the file is no recorded fault. The message has its number and what is wrong."""


def recorded(report: FaultReport, incident: str, run_id: str) -> RecordedFault:
    """What is kept of a report."""
    plan = report.plan
    return RecordedFault(
        cluster=plan.cluster,
        node=plan.identity.name,
        labels={INSTANCE_TYPE: plan.identity.instance_type, ZONE: plan.identity.zone, **plan.pool_selector},
        instance_type=plan.identity.instance_type,
        fault=report.fault,
        pool=plan.pool,
        treatment=plan.treatment,
        policy_digest=plan.policy_digest,
        incident=incident,
        run_id=run_id,
    )


def read_lines(file: BinaryIO) -> Iterator[RecordedFault | BrokenLineError]:
    """Each line of a file, empty ones aside: the fault, or what is wrong with it. One is held at a time."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE)):
                pass
            yield BrokenLineError(f"line {number}: longer than {LONGEST_LINE} bytes")
        elif not line.isspace():
            yield _read(line, number)


def _read(line: bytes, number: int) -> RecordedFault | BrokenLineError:
    try:
        return RecordedFault.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:100] or "the line"
        return BrokenLineError(f"line {number}: {place}: {first['msg']}")
