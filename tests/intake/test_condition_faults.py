"""Conditions of a Node as faults: which are bad, what they are called, and how long they have been so."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workers.intake.condition_faults import MOST_REASONS, Clocks
from gpu_runbooks.workers.intake.fleet import kept
from gpu_runbooks.workers.intake.reported_conditions import (
    LONGEST_REASON,
    LONGEST_SUMMARY,
    conditions_of,
    moment,
)

WATCHED = {
    "Ready": frozenset({"False", "Unknown"}),
    "AcceleratedHardwareReady": frozenset({"False"}),
    "KernelDeadlock": frozenset({"True"}),
    "XidCriticalError": frozenset({"True"}),
    "GpuMemWatch": frozenset({"True"}),
}
CREATED = datetime(2026, 3, 1, 8, tzinfo=UTC)
NOW = datetime(2026, 3, 1, 11, tzinfo=UTC)
GPU = "GPU-11112222-3333-4444-5555-66667777888a"
OTHER_GPU = "GPU-99992222-3333-4444-5555-66667777888b"


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def written(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: str = "KernelDeadlock",
    status: str = "True",
    reason: Any = "TaskHung",
    since: Any = None,
    **more: Any,
) -> dict[str, Any]:
    since = written(since) if isinstance(since, datetime) else since
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": since} | more


def node(*conditions: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-a1", "uid": "u1"}, "status": {"conditions": list(conditions)}}


class Watcher:
    """One process that looks at one node."""

    def __init__(self) -> None:
        self._clocks = Clocks("u1", CREATED)

    def look(self, now: datetime, *conditions: Any):
        return self._clocks.look(conditions_of(node(*conditions), WATCHED), now)

    def fault(self, now: datetime, *conditions: Any):
        (fault,) = self.look(now, *conditions).faults
        return fault


def test_polarity_is_told_by_type_and_a_missing_condition_is_neither_good_nor_bad() -> None:
    read = conditions_of(
        node(
            condition("Ready", "Unknown", "NodeStatusUnknown", message="Kubelet stopped posting."),
            condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
            condition("KernelDeadlock", "False", "KernelHasNoDeadlock"),
            condition(
                "XidCriticalError", "True", '{"31":true}', message="00000000-0000-4000-8000-0000000000b1"
            ),
            condition("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", message="m" * 4096),
            condition("MemoryPressure", "True", "nobody asked for it"),
        ),
        WATCHED,
    )
    bad = {each.type: (each.status, each.good_status, each.reason) for each in read.bad}
    assert bad == {
        "Ready": ("Unknown", "True", "NodeStatusUnknown"),
        "AcceleratedHardwareReady": ("False", "True", "NvidiaXID79Error"),
        "XidCriticalError": ("True", "False", '{"31":true}'),
        "GpuMemWatch": ("True", "False", "GpuMemWatchIsNotHealthy"),
    }
    assert read.good == {"KernelDeadlock"}
    assert max(len(each.summary) for each in read.bad) == LONGEST_SUMMARY
    assert conditions_of(node(), WATCHED).good == frozenset()


@pytest.mark.parametrize("status", ["Unknown", "true", "", None, 1])
def test_a_status_that_says_nothing_is_no_fault_and_ends_none(status: Any) -> None:
    watcher = Watcher()
    first = watcher.fault(NOW, condition(since=at(-10)))
    between = watcher.look(at(1), condition(status=status, since=at(1)))
    again = watcher.fault(at(2), condition(since=at(2)))
    assert (between.faults, between.cleared) == ((), ())
    assert (again.first_seen, again.fingerprint) == (first.first_seen, first.fingerprint)


def test_a_condition_becomes_a_fault_with_all_that_it_says() -> None:
    fault = Watcher().fault(
        NOW,
        condition(
            "AcceleratedHardwareReady", "False", "NvidiaXID79Error", at(-5), message=f"{GPU}: off\nthe  bus"
        ),
    )
    assert (fault.source, fault.code, fault.status, fault.good_status) == (
        FaultSource.CONDITION,
        "AcceleratedHardwareReady",
        "False",
        "True",
    )
    assert (fault.reason, fault.summary) == ("NvidiaXID79Error", f"{GPU}: off the bus")
    assert (fault.entity.kind, fault.entity.uuid) == ("gpu", GPU)
    assert (fault.first_seen, fault.last_seen) == (at(-5), NOW)


@pytest.mark.parametrize(
    ("reason", "message", "uuid"),
    [
        (f"Bad-{GPU}", "", None),  # part of another word
        ("Bad", f"{GPU.lower().replace('gpu', 'GPU')} and {GPU.replace('8a', '8A')}", GPU),
        ("Bad", f"{GPU} and {OTHER_GPU}", None),
        ("Bad", "MIG-" + GPU, None),
        ("Bad", f"{GPU}0", None),
        ("Bad", GPU + " " * 5000 + OTHER_GPU, None),
        ("Bad", "GPU 3", None),
    ],
)
def test_a_gpu_is_named_only_where_it_is_surely_one(reason: str, message: str, uuid: str | None) -> None:
    fault = Watcher().fault(NOW, condition(reason=reason, message=message))
    assert fault.entity.uuid == uuid


# --- clocks -------------------------------------------------------------------------------------------


def test_reasons_of_one_status_have_clocks_of_their_own() -> None:
    """A, then B over it, then A again: neither resets the other, whatever `lastTransitionTime` does."""
    watcher = Watcher()
    first = watcher.fault(NOW, condition(reason="A", since=at(-10)))
    second = watcher.fault(at(5), condition(reason="B", since=at(-10)))
    rewritten = watcher.fault(at(6), condition(reason="C", since=at(5.5)))
    back = watcher.fault(at(9), condition(reason="A", since=at(9)))
    assert (first.first_seen, second.first_seen, rewritten.first_seen) == (at(-10), at(5), at(5.5))
    assert (back.first_seen, back.fingerprint) == (at(-10), first.fingerprint)
    assert len({first.fingerprint, second.fingerprint, rewritten.fingerprint}) == 3


def test_gpus_of_one_reason_have_clocks_of_their_own() -> None:
    watcher = Watcher()
    first = watcher.fault(NOW, condition(message=GPU, since=at(-10)))
    other = watcher.fault(at(5), condition(message=OTHER_GPU, since=at(-10)))
    assert (first.first_seen, other.first_seen) == (at(-10), at(5))
    assert first.fingerprint != other.fingerprint


def test_a_rewritten_transition_time_resets_nothing() -> None:
    watcher = Watcher()
    first = watcher.fault(NOW, condition(since=at(-10)))
    later = [watcher.fault(at(each), condition(since=at(each))) for each in range(1, 60)]
    assert {(each.first_seen, each.fingerprint) for each in later} == {(at(-10), first.fingerprint)}


def test_a_status_that_turns_good_ends_all_clocks_of_its_type_and_no_other() -> None:
    watcher = Watcher()
    ready = condition("Ready", "False", "KubeletNotReady", at(-30))
    before = watcher.look(NOW, ready, condition(reason="A", since=at(-10)))
    watcher.look(at(1), ready, condition(reason="B", since=at(1)))
    good = watcher.look(at(2), ready, condition(status="False", reason="Fine", since=at(2)))
    after = watcher.look(at(3), ready, condition(reason="A", since=at(3)))
    assert [(each.type, each.uid, each.at) for each in good.cleared] == [("KernelDeadlock", "u1", at(2))]
    assert [each.first_seen for each in after.faults] == [at(-30), at(3)]
    assert after.faults[0].fingerprint == before.faults[0].fingerprint
    assert after.faults[1].fingerprint != before.faults[1].fingerprint
    assert watcher.look(at(4), ready).cleared == ()


def test_another_bad_status_is_another_fault_whose_clock_goes_on() -> None:
    watcher = Watcher()
    first = watcher.fault(NOW, condition("Ready", "False", "Down", at(-10)))
    second = watcher.fault(at(5), condition("Ready", "Unknown", "Down", at(5)))
    assert first.fingerprint != second.fingerprint
    assert (second.status, second.first_seen) == ("Unknown", at(-10))


# --- restarts -----------------------------------------------------------------------------------------

SANE_OR_NOT = [at(-60), None, "", 7, "0001-01-01T00:00:00Z", written(at(60 * 24 * 365)), "yesterday", []]


@pytest.mark.parametrize("since", SANE_OR_NOT)
def test_a_restart_neither_loses_nor_repeats_a_fault(since: Any) -> None:
    """What stands has the same fingerprint in each process, and began at the same moment."""
    bad = condition(since=since)
    processes = [Watcher() for _ in range(3)]
    faults = [each.fault(at(10 * number), bad) for number, each in enumerate(processes)]
    assert len({each.fingerprint for each in faults}) == 1
    assert {each.first_seen for each in faults} == {at(-60) if isinstance(since, datetime) else CREATED}


def test_a_restart_continues_at_the_transition_that_was_watched() -> None:
    watcher = Watcher()
    watcher.look(at(-20), condition(status="False", since=at(-500)))
    seen = watcher.fault(NOW, condition(since=at(-1)))
    restarted = Watcher().fault(at(30), condition(since=at(-1)))
    assert (restarted.fingerprint, restarted.first_seen) == (seen.fingerprint, at(-1))


def test_a_restart_knows_the_later_reason_of_a_status_that_stayed_bad() -> None:
    watcher = Watcher()
    watcher.look(NOW, condition(reason="A", since=at(-10)))
    seen = watcher.fault(at(5), condition(reason="B", since=at(-10)))
    restarted = Watcher().fault(at(30), condition(reason="B", since=at(-10)))
    assert restarted.fingerprint == seen.fingerprint


@pytest.mark.parametrize("since", SANE_OR_NOT)
def test_a_condition_that_was_seen_good_is_news_whatever_it_says_of_its_time(since: Any) -> None:
    """Also where the detector does not tell, or leaves the time of a transition long ago."""
    watcher = Watcher()
    first = watcher.fault(NOW, condition(since=since))
    watcher.look(at(10), condition(status="False", since=since))
    second = watcher.fault(at(20), condition(since=since))
    assert second.fingerprint != first.fingerprint
    assert second.first_seen == at(20)


def test_a_stale_transition_time_does_not_age_a_fault_that_just_began() -> None:
    watcher = Watcher()
    watcher.look(NOW, condition(status="False", since=at(-5000)))
    assert watcher.fault(at(1), condition(since=at(-5000))).first_seen == at(1)


def test_a_clock_begins_no_earlier_than_its_node() -> None:
    """What a detector says of a time before the Node existed uses up none of the toleration."""
    young = Clocks("u1", at(-4))
    read = conditions_of(node(condition(reason="A", since=at(-12))), WATCHED)
    (fault,) = young.look(read, NOW).faults
    assert fault.first_seen == at(-4)
    assert fault.fingerprint == Watcher().fault(NOW, condition(reason="A", since=at(-12))).fingerprint
    rewritten = conditions_of(node(condition(reason="A", since=at(-8))), WATCHED)
    assert young.look(rewritten, at(1)).anew[fault.fingerprint].first_seen == at(-4)


@pytest.mark.parametrize("seen", [(), (condition(status="False", since=at(-500)),)])
def test_a_clock_begins_no_earlier_than_the_look_that_saw_no_fault(seen: tuple[Any, ...]) -> None:
    watcher = Watcher()
    watcher.look(at(-2), *seen)
    fault = watcher.fault(NOW, condition(since=at(-5)))
    assert fault.first_seen == at(-2)
    assert fault.fingerprint == Watcher().fault(at(30), condition(since=at(-5))).fingerprint


def test_a_type_that_was_not_watched_at_the_last_look_is_as_old_as_it_says() -> None:
    bad = node(condition("GpuMemWatch", since=at(-60)))
    clocks = Clocks("u1", CREATED)
    clocks.look(conditions_of(bad, {"KernelDeadlock": frozenset({"True"})}), at(-2))
    (fault,) = clocks.look(conditions_of(bad, WATCHED), NOW).faults
    assert fault.first_seen == at(-60)


def test_a_clock_ahead_of_ours_makes_no_future() -> None:
    fault = Watcher().fault(NOW, condition(since=at(2)))
    assert fault.first_seen == NOW
    assert fault.fingerprint == Watcher().fault(at(30), condition(since=at(2))).fingerprint


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01T11:00:00Z", NOW),
        ("2026-03-01T11:00:00.123456789Z", NOW.replace(microsecond=123456)),
        ("2026-03-01T12:00:00+01:00", NOW),
        ("2026-03-01T11:00:00", None),
        ("2026-03-01", None),
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+10:00", None),
        ("9999-12-31T23:59:59-10:00", None),
        ("", None),
        (None, None),
        (1772362800, None),
        ({"T": 1}, None),
        (["T"], None),
    ],
)
def test_times_are_read_or_there_is_none(text: Any, time: datetime | None) -> None:
    assert moment(text) == time


@pytest.mark.parametrize("since", SANE_OR_NOT)
def test_a_restart_knows_what_was_watched_turning_bad(since: Any) -> None:
    """Also without a time, and with one that cannot be: the fingerprint is what the Node says."""
    watcher = Watcher()
    watcher.look(at(-20), condition(status="False", since=at(-500)))
    seen = watcher.fault(NOW, condition(since=since))
    restarted = Watcher().fault(at(30), condition(since=since))
    assert seen.first_seen == NOW
    assert restarted.fingerprint == seen.fingerprint


def test_what_was_good_once_does_not_begin_with_the_node() -> None:
    watcher = Watcher()
    watcher.look(at(-20), condition(status="False"))
    watcher.look(at(-10))
    assert watcher.fault(NOW, condition()).first_seen == NOW


# --- transition times that are rewritten ------------------------------------------------------------------


def test_the_first_rewritten_time_may_hide_that_it_was_good() -> None:
    """The fault is what it was, and beside it stands what another process would take it for."""
    watcher = Watcher()
    first = watcher.fault(NOW, condition(since=at(-10)))
    later = watcher.look(at(5), condition(since=at(4)))
    still = watcher.look(at(6), condition(since=at(4), message="still"))
    assert [each.fingerprint for each in later.faults] == [first.fingerprint]
    anew = later.anew[first.fingerprint]
    assert (anew.fingerprint, anew.first_seen) == (
        Watcher().fault(at(5), condition(since=at(4))).fingerprint,
        at(4),
    )
    assert still.anew[first.fingerprint].fingerprint == anew.fingerprint


def test_a_second_rewritten_time_says_that_the_detector_does_that_until_it_is_good() -> None:
    watcher = Watcher()
    looks = [watcher.look(at(each), condition(since=at(each))) for each in range(60)]
    assert [number for number, look in enumerate(looks) if look.anew] == [1]
    watcher.look(at(60), condition(status="False", since=at(60)))
    watcher.look(at(61), condition(since=at(61)))
    assert watcher.look(at(62), condition(since=at(62))).anew


@pytest.mark.parametrize(
    "between",
    [
        condition(reason="B", since=at(1)),
        condition(message=GPU, since=at(1)),
        condition(status="Unknown", since=at(1)),
        condition("MemoryPressure"),
    ],
)
def test_a_new_time_that_a_change_explains_hides_nothing(between: dict[str, Any]) -> None:
    watcher = Watcher()
    watcher.look(NOW, condition(since=at(-10)))
    watcher.look(at(1), between)
    assert watcher.look(at(2), condition(since=at(2))).anew == {}


@pytest.mark.parametrize("since", [at(-20), at(60), None, "0001-01-01T00:00:00Z"])
def test_a_time_that_cannot_be_hides_nothing(since: Any) -> None:
    watcher = Watcher()
    watcher.look(NOW, condition(since=at(-10)))
    assert watcher.look(at(1), condition(since=since)).anew == {}


# --- nodes that boot ------------------------------------------------------------------------------------


def test_a_node_that_was_never_ready_boots() -> None:
    ready = condition("Ready", "False", "KubeletNotReady", CREATED + timedelta(seconds=90))
    look = Watcher().look(NOW, ready, condition(since=CREATED))
    assert look.booting == {look.faults[0].fingerprint}


def test_a_node_that_was_ready_does_not_boot() -> None:
    late = condition("Ready", "False", "KubeletNotReady", CREATED + timedelta(seconds=121))
    assert Watcher().look(NOW, late).booting == frozenset()
    seen = Watcher()
    seen.look(CREATED + timedelta(seconds=10), condition("Ready", "True", "KubeletReady", CREATED))
    soon = condition("Ready", "Unknown", "NodeStatusUnknown", CREATED + timedelta(seconds=50))
    assert seen.look(CREATED + timedelta(seconds=60), soon).booting == frozenset()


# --- hostile input --------------------------------------------------------------------------------------


def test_reasons_without_end_are_not_faults_without_end() -> None:
    watcher = Watcher()
    looks = [watcher.look(at(each), condition(reason=f"Count{each}", since=NOW)) for each in range(100)]
    assert sum(len(look.faults) for look in looks) == MOST_REASONS
    assert [look.overlooked for look in looks if look.overlooked] == [("KernelDeadlock",)]
    watcher.look(at(100), condition(status="False"))
    assert watcher.fault(at(101), condition(reason="Count7", since=at(101))).first_seen == at(101)


def test_long_reasons_are_cut_and_still_told_apart() -> None:
    faults = [Watcher().fault(NOW, condition(reason="x" * 100_000 + end)) for end in "ab"]
    assert faults[0].fingerprint != faults[1].fingerprint
    assert max(len(each.reason) for each in faults) <= LONGEST_REASON


def test_nothing_of_strangers_has_effects_in_a_line() -> None:
    fault = Watcher().fault(
        NOW, condition(reason="A\x1b[31m\nB", message="![x](http://h.example/p.png) <img src=x>\x00\u202e")
    )
    assert all(text.isprintable() for text in (fault.reason, fault.summary))
    assert "](" not in fault.summary
    assert "<img" not in fault.summary


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
CONDITION = JSON | st.fixed_dictionaries(
    {
        "type": st.sampled_from(sorted(WATCHED)) | JSON,
        "status": st.sampled_from(["True", "False", "Unknown"]) | JSON,
        "reason": JSON,
        "message": JSON,
        "lastTransitionTime": st.datetimes().map(datetime.isoformat) | JSON,
    }
)


@given(st.lists(CONDITION, max_size=6), JSON, JSON, JSON)
def test_no_object_breaks_the_reader(conditions: Any, spec: Any, labels: Any, info: Any) -> None:
    odd = {
        "metadata": {"name": "n", "uid": "u", "labels": labels, "creationTimestamp": info},
        "spec": spec,
        "status": {"conditions": conditions, "nodeInfo": info},
    }
    seen = kept(odd, WATCHED)
    look = Clocks(seen.uid, seen.created).look(seen.conditions, NOW)
    assert len(look.faults) <= len(conditions)
    kept(odd | {"status": spec}, WATCHED)
