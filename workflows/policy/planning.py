"""The plan for one fault on one node: policy resolved, with everything that an incident needs to know.

Pure. Which rule decides is in `answers`, what is built in in `built_in`.
"""

from collections.abc import Mapping

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan, Rung, TestPodTemplate, Treatment
from gpu_runbooks.activities.names import is_opted_out
from gpu_runbooks.workflows.policy.answers import answer_to
from gpu_runbooks.workflows.policy.built_in import Answer
from gpu_runbooks.workflows.policy.ladders import leaves_node
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.pools import Pool
from gpu_runbooks.workflows.traits import node_traits


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
    pool = pool_of(policy, identity.name, labels)
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
        budget=pool.budget.wire(),
        opted_out=is_opted_out(labels),
        storm=policy.storm.wire(),
        traits=node_traits(identity, labels),
        owners=pool.owners,
        windows=tuple(window.wire() for window in pool.windows),
        freezes=tuple(freeze.wire() for freeze in (*policy.freezes, *pool.freezes)),
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
        probation=policy.probation_of(pool),
        operator_reminder=policy.operator.reminder,
        operator_deadline=policy.operator.deadline,
        after_deadline=policy.operator.then,
        policy_digest=policy.digest,
    )


def treatment_of(policy: Policy, fault: Fault, ladder: str | None = None) -> Treatment:
    """Rule for a fault and its resolved ladder.

    A ladder that a person names also overrides that a rule leaves the node alone: no longer the
    application's fault where that ladder touches the node.
    Raises `PlanRefused` for a ladder that does not exist.
    """
    return treatment_by(policy, answer_to(policy, fault), ladder)


def treatment_by(policy: Policy, answer: Answer, ladder: str | None = None) -> Treatment:
    """An answer with its resolved ladder, as `treatment_of`."""
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
                approval=step.approval is not None,
                **({"approval_lasts": step.approval.lasts} if step.approval else {}),
                approval_by_other=step.approval is not None and step.approval.by_other,
                observe=step.mode == "observe",
            )
            for step in rungs
        ),
    )


def pool_of(policy: Policy, node: str, labels: Mapping[str, str]) -> Pool:
    """Pool of a node with these labels. Raises `PlanRefused` for none, and for two."""
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
