"""What a sweep leaves behind: small, and one call for what stands."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runbooks.workflows.sweep_findings import Found, Kind
from gpu_runbooks.workflows.sweep_report import (
    ALERT_LASTS,
    MOST_CALLS,
    MOST_UNREAD,
    Did,
    Stood,
    SweepResult,
    advice,
    counts,
    finding,
    first,
    fitting,
    pages,
    stood,
    table,
)

NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)
INTERVAL = timedelta(minutes=10)


LIST = "temporal workflow list --query \"WorkflowType = 'FleetSweep' AND WorkflowId STARTS_WITH 'sweep/test'"


def orphan(name="n1", kind=Kind.ORPHAN_BLOCK, did=Did.REPORTED):
    return finding(Found(kind, name, "blocked, and nobody works on it", on_node=True), did)


def calls(findings, before=(), now=NOW, **options):
    """What stands after a sweep, and which calls it makes, by subject and whether they are over."""
    stands = stood(findings, before, now, INTERVAL, **options)
    texts = {each.key: each.text for each in findings}
    return stands, [(each.labels["subject"], each.over) for each in pages("test", stands, before, texts, now)]


def test_a_finding_calls_once_while_it_stands_and_is_taken_back_after_it():
    stands, called = calls([orphan()])
    assert called == [("n1", False)]
    later = NOW + INTERVAL
    stands, called = calls([orphan()], stands, later)
    assert called == []
    stands, called = calls([orphan(), orphan("n2")], stands, later + INTERVAL)
    assert called == [("n2", False)]
    stands, called = calls([orphan("n2")], stands, later + 2 * INTERVAL)
    assert called == [("n1", True)]
    assert [each.subject for each in stands] == ["n2"]


def test_a_call_is_repeated_before_its_alert_ends():
    before, _ = calls([orphan()])
    moment = NOW
    for _ in range(20):
        moment += INTERVAL
        stands, _ = calls([orphan()], before, moment)
        assert stands[0].until > moment + INTERVAL
        assert stands[0].since == NOW
        before = stands


def test_what_stood_before_stands_where_not_all_could_be_read():
    before, _ = calls([orphan()])
    stands, called = calls([], before, NOW + ALERT_LASTS, complete=False)
    assert [each.subject for each in stands] == ["n1"]
    assert called == [("n1", False)]


@pytest.mark.parametrize(
    ("kind", "did"),
    [
        (Kind.UNKNOWN, Did.REPORTED),
        (Kind.NOT_RUNNING, Did.REPORTED),
        (Kind.LEFTOVERS, Did.FAILED),
    ],
)
def test_what_may_pass_calls_from_the_second_sweep_on(kind, did):
    stands, called = calls([orphan(kind=kind, did=did)])
    assert called == []
    _, called = calls([orphan(kind=kind, did=did)], stands, NOW + INTERVAL)
    assert called == [("n1", False)]


@pytest.mark.parametrize("did", [Did.MENDED, Did.LEFT, Did.CHANGED, Did.LATER])
@pytest.mark.parametrize("kind", [Kind.LEFTOVERS, Kind.KEPT_BLOCK, Kind.UNHANDLED_CONDITION])
def test_nobody_is_called_for_what_is_mended_or_right(kind, did):
    assert calls([orphan(kind=kind, did=did)]) == ((), [])


def test_a_fleet_of_findings_is_a_small_result_and_few_calls():
    long = "n" * 250
    findings = [orphan(f"{number}-{long}") for number in range(5000)]
    listed = first(findings)
    stands, called = calls(findings)
    result = fitting(
        SweepResult(
            counts=counts(findings),
            findings=listed,
            unlisted=len(findings) - len(listed),
            stood=stands,
            unread=("u" * 300,) * MOST_UNREAD,
        )
    )
    assert len(result.findings) >= 10
    assert len(result.model_dump_json()) < 16 * 1024
    assert len(called) == MOST_CALLS + 1
    assert called[-1] == ("further findings", False)
    assert result.counts == {"orphan-block: reported": 5000}
    assert f"And {result.unlisted} more" in table(result)


@pytest.mark.parametrize(
    ("kind", "on_node", "command"),
    [
        (
            Kind.ORPHAN_BLOCK,
            True,
            "--workflow-id node/test/n1 --type ReturnNode",
        ),
        (Kind.UNREADABLE, True, "kubectl get node n1 "),
        (Kind.UNKNOWN, True, LIST),
        (Kind.NOT_RUNNING, False, LIST),
        (Kind.ORPHAN_BLOCK, False, LIST),  # what stands for further findings is no node
    ],
)
def test_the_advice_has_a_command_that_finds_something(kind, on_node, command):
    assert command in advice("test", Stood(key="k", kind=kind, subject="n1", on_node=on_node, since=NOW))


def test_the_table_says_what_was_found_and_what_was_not_read():
    result = SweepResult(nodes=3, findings=(orphan(),), unread=("nodes: forbidden",))
    assert "| orphan-block | n1 |" in table(result)
    assert "nodes: forbidden" in table(result)
    assert "Nothing was found" in table(SweepResult(nodes=3))
    assert "Nothing was found" not in table(SweepResult(unread=("nodes: forbidden",)))
