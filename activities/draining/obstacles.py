"""A refusal of the API server in the words of the person who has to do something about it. Pure."""

import re

from gpu_runbooks.activities.draining.budgets import BudgetsFound
from gpu_runbooks.activities.draining.eviction import Answer, Verdict
from gpu_runbooks.activities.draining.pods import Obstacle, is_ready
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.drain import BlockerReason

LONGEST_QUOTE = 160
"""Characters of the server's own words: what to do has to fit behind them."""

DELETION_DUE = 30.0
"""Seconds from an accepted eviction after which a deletion that has not begun is odd."""

NOT_LOOKED_UP = BudgetsFound()

NOT_TRIED = Obstacle(BlockerReason.NOT_TRIED, "not tried yet")

ACCEPTED = Obstacle(BlockerReason.TERMINATING, "its eviction was accepted, its deletion is about to begin")

NOT_DELETED = Obstacle(
    BlockerReason.NOT_DELETED,
    f"its eviction was accepted {DELETION_DUE:.0f} s ago and its deletion has not begun: look for a proxy or "
    "webhook that turns writes into dry runs; it is asked again",
)


def obstacle_of(answer: Answer, pod: Object, found: BudgetsFound = NOT_LOOKED_UP) -> Obstacle:
    """What an answer says of a pod, with the budgets that select it where those were looked up."""
    budgets = found.budgets
    quote = answer.message if len(answer.message) <= LONGEST_QUOTE else answer.message[:LONGEST_QUOTE] + "..."
    names = answer.names or tuple(budget.name for budget in budgets)
    match answer.verdict:
        case Verdict.ACCEPTED:
            return ACCEPTED
        case Verdict.BUDGET:
            return _behind_budget(quote, names, pod, found)
        case Verdict.BUDGET_NOT_OBSERVED:
            return Obstacle(
                BlockerReason.BUDGET_NOT_OBSERVED,
                f"{_budgets(names, found)} changed and was not counted since: it is asked again; if it stays "
                "so, see whether the kube-controller-manager runs",
                names,
            )
        case Verdict.TWO_BUDGETS:
            return Obstacle(
                BlockerReason.TWO_BUDGETS,
                f"more than one PodDisruptionBudget selects it ({_known(names, found)}), so it cannot be "
                "evicted: remove one or narrow its selector, and it is asked again within two minutes; or "
                "order the pod's deletion",
                names,
            )
        case Verdict.THROTTLED:
            return Obstacle(
                BlockerReason.THROTTLED,
                f"the API server is busy, says nothing of the pod; asked again: {quote}",
            )
        case Verdict.NAMESPACE_TERMINATING:
            return Obstacle(
                BlockerReason.NAMESPACE_TERMINATING,
                f"its namespace {pod['metadata']['namespace']} is being deleted: waiting for the pod to go "
                "with it; if it stays, see the namespace's conditions",
                (pod["metadata"]["namespace"],),
            )
        case Verdict.FORBIDDEN:
            return Obstacle(BlockerReason.FORBIDDEN, quote)
        case Verdict.DENIED:
            return _denied(quote, answer.names)
        case Verdict.GONE | Verdict.CHANGED:
            return Obstacle(
                BlockerReason.API_SERVER,
                f"the pod changed or went while it was asked for; looked at again: {quote}",
            )
        case Verdict.API_SERVER:
            return Obstacle(
                BlockerReason.API_SERVER,
                f"no good answer of the API server, asked again; see its health: {quote}",
            )


def _behind_budget(quote: str, names: tuple[str, ...], pod: Object, found: BudgetsFound) -> Obstacle:
    budgets = found.budgets
    if not is_ready(pod) and any(not budget.spares_unhealthy for budget in budgets):
        counts = ", ".join(
            f"{budget.name} needs {budget.needed} and has {budget.healthy}" for budget in budgets
        )
        return Obstacle(
            BlockerReason.UNHEALTHY_BEHIND_BUDGET,
            f"it is not Ready itself, and {_budgets(names, found)} protects it all the same ({counts} "
            "healthy), so waiting cures nothing: set the budget's unhealthyPodEvictionPolicy to AlwaysAllow, "
            "mend its pods, or order the pod's deletion",
            names,
        )
    return Obstacle(
        BlockerReason.BUDGET,
        f"{_budgets(names, found)} does not permit it now ({quote}): it is asked again; have its owner "
        "bring up more replicas or relax the budget",
        names,
    )


def _denied(quote: str, names: tuple[str, ...]) -> Obstacle:
    if re.search(r"failed (?:calling|to call) webhook", quote, re.IGNORECASE):
        advice = "the webhook does not answer: mend it"
    else:
        advice = "see its rules, or talk to its owner"
    by = f"{', '.join(names)} refuses" if names else "the API server refuses"
    return Obstacle(BlockerReason.DENIED, f"{by} its eviction; {advice}. It is asked again: {quote}", names)


def _budgets(names: tuple[str, ...], found: BudgetsFound) -> str:
    if not names:
        return f"a PodDisruptionBudget ({_known(names, found)})" if found.problem else "a PodDisruptionBudget"
    return f"PodDisruptionBudget {', '.join(names)}" + (f" ({found.problem})" if found.problem else "")


def _known(names: tuple[str, ...], found: BudgetsFound) -> str:
    """Names of budgets, or why they are unknown."""
    if names:
        return ", ".join(names)
    return f"names unknown: {found.problem}" if found.problem else "names unknown"
