"""`gpu-runbooks policy ...`: which function answers each command, and with what exit status.

What a command needs is imported when it is asked for: a check in CI needs neither Temporal nor Kubernetes.
"""

import argparse
import asyncio
import json

from rich.console import Console

from gpu_runbooks.workers.policy.check import check, check_as_json
from gpu_runbooks.workers.printable import printable_lines
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.schema import policy_schema


def run(asked: argparse.Namespace) -> int:
    """Answer a command; its exit status."""
    out, err = Console(), Console(stderr=True)
    match asked.policy_command:
        case "check":
            return _check(asked, out)
        case "schema":
            out.file.write(json.dumps(policy_schema(), indent=2) + "\n")
            return 0
        case "explain":
            return _explain(asked, out, err)
        case "record":
            return _record(asked, out, err)
        case _:
            return _diff(asked, out, err)


def _check(asked: argparse.Namespace, out: Console) -> int:
    if not asked.json:
        out.file.write(printable_lines(check(asked.file)) + "\n")
        return 0
    said = check_as_json(asked.file)
    out.file.write(json.dumps(said, indent=2) + "\n")
    return 0 if said["valid"] else 1


def _explain(asked: argparse.Namespace, out: Console, err: Console) -> int:
    from gpu_runbooks.workers.policy import explain  # noqa: PLC0415

    settings = Settings()
    names = ("status", "reason", "place", "before", "recovery_action")
    question = explain.Question(
        node=asked.node,
        fault=asked.fault,
        policy=asked.policy or settings.policy,
        # The name that a role has without one is no name of a person's cluster.
        cluster=asked.cluster or (settings.cluster if "cluster" in settings.model_fields_set else ""),
        said={name: value for name in names if (value := getattr(asked, name)) is not None},
        labels=asked.labels,
        instance_type=asked.instance_type or "",
        offline=asked.offline,
    )
    asyncio.run(explain.answer(question, as_json=asked.json, out=out, err=err))
    return 0


def _record(asked: argparse.Namespace, out: Console, err: Console) -> int:
    from gpu_runbooks.workers.policy.record import record  # noqa: PLC0415

    asyncio.run(record(asked.since, asked.cluster or "", out.file.write, err))
    return 0


def _diff(asked: argparse.Namespace, out: Console, err: Console) -> int:
    from gpu_runbooks.workers.policy.diff import diff  # noqa: PLC0415

    return diff(
        asked.old,
        asked.new,
        asked.events,
        skip_broken=asked.skip_broken,
        as_json=asked.json,
        out=out,
        err=err,
    )
