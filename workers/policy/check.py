"""`gpu-runbooks policy check`: whether a policy file can be used, and what it comes to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workers.policy.policy_file import read_policy_file
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.policy.approval import ApprovalSection
from gpu_runbooks.workflows.policy.fields import in_units
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.windows import Window

MOMENT = "%Y-%m-%d %H:%M %Z"


def check(file: Path) -> str:
    """Pools, ladders and repairs of the file. Raises `PolicyError` and `OSError`."""
    policy = load_policy(read_policy_file(file))
    return "\n".join([f"{file}: valid, mode {policy.mode}, digest {policy.digest}", *_lines(policy)])


def check_as_json(file: Path) -> dict[str, Any]:
    """The same for programs: what the file comes to, or each error with line and field. Raises `OSError`."""
    try:
        policy = load_policy(read_policy_file(file))
    except PolicyError as error:
        problems = [
            {"line": each.line, "field": each.field, "message": each.message} for each in error.problems
        ]
        return {"valid": False, "errors": problems}
    return {
        "valid": True,
        "errors": [],
        "digest": policy.digest,
        "mode": policy.mode,
        "ladders": list(policy.ladder_names()),
        "policy": policy.model_dump(mode="json"),
    }


def _lines(policy: Policy) -> Iterator[str]:
    for pool in policy.pools:
        mode = "enforce" if policy.enforces(pool) else "observe"
        windows = "; ".join(map(_window, pool.windows)) or "at any time"
        owners = f"owners {pool.owners}" if pool.owners else "no owners"
        most = pool.budget.wire().in_words()
        blocks = ", blocked while they wait" if pool.budget.block_waiting else ""
        yield f"pool {pool.name}: mode {mode}, at most {most} at once{blocks}, {windows}, {owners}"
        for freeze in (*policy.freezes, *pool.freezes):
            yield f"  frozen from {freeze.begins:{MOMENT}} to {freeze.ends:{MOMENT}}: {freeze.why}"
        yield f"  repairs: {_in_words(policy.repair_of(pool))}"
    yield f"ladders: {', '.join(policy.ladder_names())}"
    for name, ladder in policy.ladders.items():
        asks = [f"{step.rung} asks for approval{_worth(step.approval)}" for step in ladder if step.approval]
        observes = [f"{step.rung} is observed only" for step in ladder if step.mode == "observe"]
        if asks or observes:
            yield f"  {name}: {', '.join(asks + observes)}"
    if policy.faults:
        yield f"rules of the site: {', '.join(rule.name for rule in policy.faults)}"
    for instance_type in policy.hardware:
        expected = policy.expected(instance_type)
        if expected is not None:
            nvlink = "NVLink" if expected.nvlink else "no NVLink"
            devices = f"{expected.gpus} GPUs, {expected.efa_interfaces} EFA interfaces"
            yield f"hardware of {instance_type}: {devices}, {nvlink}"


def _worth(approval: ApprovalSection) -> str:
    """How an approval differs from any; empty where it does not."""
    usual = approval.lasts == ApprovalSection().lasts
    lasts = "" if usual else f" that lasts {in_units(approval.lasts)}"
    return lasts + (" of another person" if approval.by_other else "")


def _window(window: Window) -> str:
    return f"{', '.join(window.days)} {window.begins:%H:%M} for {in_units(window.lasts)} {window.timezone}"


def _in_words(repair: RepairPolicy) -> str:
    fields = repair.model_dump(mode="json", exclude={"repeats"})
    said = ", ".join(f"{name} {str(value).lower()}" for name, value in fields.items())
    repeats = repair.repeats
    return (
        f"{said}; at most, of the same hardware within {window_in_words(repeats.window)}: resets "
        f"{repeats.resets}, reboots {repeats.reboots}, replacements {repeats.replacements}"
    )
