"""Which rule decides about a fault: the most specific one. Pure.

1. the site's rule for a reason of the condition, then for its type; for any other source, for its code;
2. what a reason of the condition means: the site's rule for the Xid that it names, else what is built in;
3. what is built in: NVIDIA's recovery action, a repeat, the table of the source;
4. else the ladder `block`.

Each reason of a condition is asked by itself, and the gravest answer decides: a rule for a harmless reason
says nothing of the others.
"""

from datetime import timedelta

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.built_in import LADDER_OF, Answer, built_in_answer
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.condition_reasons import DOUBTS, Meaning, by_reason, meaning_of
from gpu_runbooks.workflows.policy.faults import FaultRule, Recurrence, canonical_code
from gpu_runbooks.workflows.policy.ladders import NO_TOUCH, leaves_node
from gpu_runbooks.workflows.policy.node_conditions import UNKNOWN, built_in_statuses, condition_of
from gpu_runbooks.workflows.policy.policy import Policy
from gpu_runbooks.workflows.policy.repeats import RepeatRule, repeat_rule
from gpu_runbooks.workflows.policy.rows import FirstRung
from gpu_runbooks.workflows.severity import REPAIRS


def answer_to(policy: Policy, fault: Fault) -> Answer:
    """The rule for a fault, and its ladder by name."""
    if fault.source is not FaultSource.CONDITION:
        return _site_answer(policy, fault) or built_in_answer(fault)
    whole = _site_rule(policy, fault)
    if whole is not None and fault.reason in whole.match.reasons:
        return _of_rule(whole, fault)  # for these very reasons together
    answers = [_of_condition(policy, each) for each in by_reason(fault)]
    if len(answers) == 1:
        return answers[0]
    return max(answers, key=lambda answer: _gravity(policy, answer))


def counts_repeats(policy: Policy, fault: Fault) -> Recurrence | RepeatRule | None:
    """Where and within which time earlier faults count for `Fault.before`; None where they say nothing."""
    rule = _site_rule(policy, fault)
    return repeat_rule(fault.source, fault.code) if rule is None else rule.repeats


def _site_rule(policy: Policy, fault: Fault) -> FaultRule | None:
    try:
        code = canonical_code(fault.source, fault.code)
    except UnreadableXidError:
        return None
    rules = policy.rules_for(fault.source, code, fault.reason)
    return next((rule for rule in rules if rule.match.fits(fault, built_in_statuses(code))), None)


def _site_answer(policy: Policy, fault: Fault) -> Answer | None:
    rule = _site_rule(policy, fault)
    return None if rule is None else _of_rule(rule, fault)


def _of_rule(rule: FaultRule, fault: Fault) -> Answer:
    if rule.repeats is not None and rule.repeats.is_reached(fault):
        return Answer(rule.name, rule.repeats.ladder, of_site=True)
    return Answer(rule.name, rule.ladder or NO_TOUCH, rule.application, rule.toleration, of_site=True)


def _of_condition(policy: Policy, fault: Fault) -> Answer:
    """Answer to a condition with one reason, or none."""
    return _site_answer(policy, fault) or _by_meaning(policy, fault) or built_in_answer(fault)


def _by_meaning(policy: Policy, fault: Fault) -> Answer | None:
    """Answer to what the reason of a bad condition means; None where nobody knows it."""
    condition = condition_of(fault.code.strip(), fault.status)
    meaning = meaning_of(fault)
    if condition is None or meaning is None:
        return None
    answer = _of_meaning(policy, meaning, condition.toleration)
    if fault.status != UNKNOWN or fault.reason in DOUBTS:
        return answer
    # Whoever does not know whether it is bad proves nothing graver by naming a reason.
    return min(answer, built_in_answer(fault), key=lambda each: _gravity(policy, each))


def _of_meaning(policy: Policy, meaning: Meaning, toleration: timedelta) -> Answer:
    if isinstance(meaning.means, FirstRung):
        return Answer(meaning.rule, LADDER_OF[meaning.means], toleration=toleration)
    site = _site_answer(policy, meaning.means)
    if site is not None:
        return site
    answer = built_in_answer(meaning.means)
    return Answer(meaning.rule, answer.ladder, answer.application, toleration)


def _gravity(policy: Policy, answer: Answer) -> tuple[bool, bool, int, int, timedelta]:
    """By what is done, the node before the workload, the first repair before all else; then by how soon."""
    ladder = policy.ladder(answer.ladder) or ()
    rungs = [step.rung for step in ladder]
    repairs = [REPAIRS.index(rung) + 1 for rung in rungs if rung in REPAIRS]
    ends_work = not {RungName.DRAIN, RungName.RESTART_WORKLOAD}.isdisjoint(rungs)
    return not leaves_node(ladder), ends_work, next(iter(repairs), 0), len(ladder), -answer.toleration
