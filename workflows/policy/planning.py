"""The plan for one fault on one node: policy resolved, with everything that an incident needs to know.

Pure. The order of answers to a fault: a rule of the site, then the built-in catalogue, then the ladder
`block`, which keeps work away and calls a person: nothing destructive is done on a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan, Rung, TestPodTemplate, Treatment
from gpu_runbooks.workflows.policy import catalogue
from gpu_runbooks.workflows.policy.catalogue import FirstRung, UnreadableXidError
from gpu_runbooks.workflows.policy.faults import canonical_code
from gpu_runbooks.workflows.policy.ladders import BLOCK_ONLY, NO_TOUCH, NOTIFY, leaves_node
from gpu_runbooks.workflows.policy.node_conditions import answer_to, built_in_statuses
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.pools import Pool

MANUAL = "manual"
"""Code of a fault that a person starts a runbook with, and the built-in rule for it."""

CONDITION_RULE = "condition-"
"""Beginning of the name of the built-in rule for a Node condition; its type follows."""

MANUAL_LADDER = "reset"
"""What a person gets who starts a runbook and names no ladder."""

LADDER_OF = {
    FirstRung.NONE: NO_TOUCH,
    FirstRung.BLOCK: BLOCK_ONLY,
    FirstRung.DRAIN_THEN_RESET: "reset",
    FirstRung.DRAIN_THEN_REBOOT: "reboot",
    FirstRung.REPLACE: "replace",
}


class PlanRefused(Exception):  # noqa: N818  a refusal, not a failure of ours
    """Policy does not permit an incident on this node. The message says why and what to change."""


def plan(
    policy: Policy,
    fault: Fault,
    identity: NodeIdentity,
    labels: Mapping[str, str],
    namespace: str,
    ladder: str | None = None,
) -> Plan:
    """Resolve policy for a fault on a node with these labels.

    `ladder` stands in place of the one that policy gives; `namespace` is where test pods run.
    Raises `PlanRefused` for a node in no pool or in two, an instance type whose hardware is unknown (no
    validation could pass), and a ladder that does not exist.
    """
    pool = _pool_of(policy, identity.name, labels)
    expected = policy.expected(identity.instance_type)
    if expected is None:
        raise PlanRefused(
            f"node {identity.name}: the hardware of instance type {identity.instance_type or '(no label)'} "
            "is not known, so that no validation could pass; write it into the section hardware of the policy"
        )
    treatment = treatment_of(policy, fault, ladder)
    return Plan(
        identity=identity,
        pool=pool.name,
        pool_selector=pool.selector,
        budget=pool.budget.max_unavailable,
        owners=pool.owners,
        windows=tuple(window.wire() for window in pool.windows),
        treatment=treatment,
        drain=policy.drain.wire(treatment.rule),
        repair=policy.repair_of(pool),
        expected=expected,
        test_pod=TestPodTemplate(
            namespace=namespace,
            image=policy.validation.test_pod.image,
            command=policy.validation.test_pod.command,
            tolerations=policy.validation.test_pod.tolerations,
        ),
        enforce=policy.enforces(pool),
        operator_reminder=policy.operator_reminder,
        policy_digest=policy.digest,
    )


def treatment_of(policy: Policy, fault: Fault, ladder: str | None = None) -> Treatment:
    """Rule for a fault and its resolved ladder.

    A ladder that a person names also overrides that a rule leaves the node alone: no longer the
    application's fault where that ladder touches the node.
    Raises `PlanRefused` for a ladder that does not exist.
    """
    answer = _site_answer(policy, fault) or _built_in_answer(fault)
    name = ladder or answer.ladder
    rungs = policy.ladder(name)
    if rungs is None:
        raise PlanRefused(f"no ladder is named {name}: there are {', '.join(policy.ladder_names())}")
    return Treatment(
        rule=answer.rule,
        application=answer.application and leaves_node(rungs),
        toleration=answer.toleration,
        ladder=name,
        rungs=tuple(
            Rung(
                name=step.rung,
                wait=step.wait,
                attempts=step.attempts,
                timeout=step.timeout,
                approval=step.approval,
                observe=step.mode == "observe",
            )
            for step in rungs
        ),
    )


def _pool_of(policy: Policy, node: str, labels: Mapping[str, str]) -> Pool:
    pools = [pool for pool in policy.pools if pool.selector.items() <= labels.items()]
    if not pools:
        raise PlanRefused(
            f"node {node} is in no pool of the policy, so that no budget covers it; the pools are "
            f"{', '.join(pool.name for pool in policy.pools)}"
        )
    if len(pools) > 1:
        raise PlanRefused(
            f"node {node} is in several pools ({', '.join(pool.name for pool in pools)}), so that no single "
            "budget covers it; make their selectors exclude each other"
        )
    return pools[0]


@dataclass(frozen=True)
class _Answer:
    rule: str
    ladder: str
    application: bool = False
    toleration: timedelta = timedelta(0)


def built_in_rule(source: FaultSource, code: str) -> str:
    """Name of the rule that a fault has where no rule of the site is for it."""
    if source is FaultSource.MANUAL:
        return MANUAL
    if source is FaultSource.XID:
        try:
            return f"xid-{catalogue.parse_code(code)}"
        except UnreadableXidError:
            return "xid-unreadable"
    if source is FaultSource.CONDITION and answer_to(code.strip()):
        return f"{CONDITION_RULE}{code.strip()}"
    return f"{source}-unknown"


def _site_answer(policy: Policy, fault: Fault) -> _Answer | None:
    try:
        code = canonical_code(fault.source, fault.code)
    except UnreadableXidError:
        return None
    for rule in policy.rules_by_code.get((fault.source, code), ()):
        if rule.match.fits(fault, built_in_statuses(code)):
            return _Answer(rule.name, rule.ladder or NO_TOUCH, rule.application, rule.toleration)
    return None


def _built_in_answer(fault: Fault) -> _Answer:
    rule = built_in_rule(fault.source, fault.code)
    if fault.source is FaultSource.MANUAL:
        return _Answer(rule, MANUAL_LADDER)
    condition = answer_to(fault.code.strip()) if fault.source is FaultSource.CONDITION else None
    if condition is not None:
        return _Answer(rule, condition.ladder, toleration=condition.toleration)
    if fault.source is not FaultSource.XID:
        return _Answer(rule, BLOCK_ONLY)
    try:
        entry, first = catalogue.find(fault.code), catalogue.first_rung(fault.code)
    except UnreadableXidError:
        return _Answer(rule, BLOCK_ONLY)
    if entry is not None and entry.origin == "app" and first is FirstRung.NONE:
        return _Answer(rule, NOTIFY, application=True)
    return _Answer(rule, LADDER_OF[first])
