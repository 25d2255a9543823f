"""Which ends of an incident answer a fault that still fires."""

import pytest
from incident.plans import identity, report

from gpu_runbooks.workers.intake.closed_incidents import settles
from gpu_runbooks.workflows.phases import Outcome

REPORT = report()
SAME = {"policy_digest": REPORT.plan.policy_digest, "provider_id": REPORT.plan.identity.provider_id}


@pytest.mark.parametrize(
    ("outcome", "changes", "settled"),
    [
        (Outcome.RETURNED, {}, True),
        (Outcome.REPLACED, {}, True),
        (Outcome.RESTARTED, {}, True),
        (Outcome.RELEASED, {}, True),
        (Outcome.ABORTED, {}, True),
        (Outcome.HELD, {}, True),
        (Outcome.VALIDATED, {}, True),
        (Outcome.CLEARED, {}, True),
        (Outcome.NOTIFIED, {}, True),
        (Outcome.DRAINED, {}, False),
        (Outcome.CANCELLED, {}, False),
        (Outcome.FAILED, {}, False),
        (Outcome.LEFT_ALONE, {}, True),
        (Outcome.LEFT_ALONE, {"policy_digest": "another"}, False),
        (Outcome.OBSERVED, {}, True),
        (Outcome.OBSERVED, {"policy_digest": "another"}, False),
        (Outcome.EXPIRED, {}, False),
        (Outcome.EXPIRED, {"provider_id": identity("n9").provider_id}, True),
        ("a word of a later version", {}, False),
        (None, {}, False),
    ],
)
def test_an_end_settles_what_it_dealt_with(outcome, changes, settled):
    result = {**SAME, "outcome": outcome, **changes}
    assert settles(result, REPORT) is settled


def test_every_outcome_is_in_the_table():
    cases = test_an_end_settles_what_it_dealt_with.pytestmark[0].args[1]
    assert {case[0] for case in cases} >= set(Outcome)
