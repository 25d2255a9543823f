"""What a drain does not take for a pod's end, and whom it leaves alone. Without a cluster."""

from datetime import timedelta

import pytest
from cluster.drain_states import (
    ACCEPTED,
    LATER,
    NOW,
    ask,
    going,
    order,
    pod,
    reasons,
    seconds,
    see,
    state_of,
)

from gpu_runbooks.activities.draining.report import report_of
from gpu_runbooks.activities.model.drain import OverrideMethod

AT_ONCE = {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 0}


@pytest.mark.parametrize("ready", ["Unknown", "False"])
def test_a_pod_without_grace_is_not_evicted_where_nobody_ends_its_containers(ready):
    state = state_of(pod("a", spec=AT_ONCE), ready=ready)
    assert ask(state, LATER, ACCEPTED) == []
    assert reasons(state) == {"a": "dead-kubelet"}


def test_a_pod_without_grace_is_evicted_on_a_live_node_or_by_order():
    assert ask(state_of(pod("a", spec=AT_ONCE)), NOW, ACCEPTED) == ["a"]
    ordered = state_of(pod("a", spec=AT_ONCE), ready="Unknown", overrides=(order("a", OverrideMethod.EVICT),))
    assert ask(ordered, NOW, ACCEPTED) == ["a"]


def test_an_object_that_goes_while_the_node_is_silent_is_no_end_of_its_pod():
    state = state_of(going("a"), going("b"), ready="Unknown")
    see(state, going("b"), now=seconds(5))
    assert reasons(state, seconds(5)) == {"a": "dead-kubelet", "b": "dead-kubelet"}
    assert report_of(state, "blocked").result.gone == 0


def test_it_is_one_once_the_node_is_back():
    state = state_of(going("a"), ready="Unknown")
    see(state, now=seconds(5))
    state.see_node("True", None)
    see(state, now=seconds(20))
    assert not state.targets
    assert report_of(state, "drained").result.gone == 1


def test_pods_of_other_nodes_are_not_ours_whatever_a_list_says():
    state = state_of(pod("a"), pod("b", spec={"nodeName": "another", "containers": [{"name": "c"}]}))
    assert ask(state, NOW, ACCEPTED) == ["a"]


def test_a_restart_leaves_alone_whoever_came_after_the_fault():
    old = pod("old", creationTimestamp=(NOW - timedelta(hours=1)).isoformat())
    new = pod("new", creationTimestamp=(NOW - timedelta(minutes=1)).isoformat())
    state = state_of(old, new, only=("u-old", "u-new"), restart=True, seen_until=NOW - timedelta(minutes=30))
    assert ask(state, NOW, ACCEPTED) == ["old"]
    see(state, new, now=seconds(5))
    result = report_of(state, "drained").result
    assert (result.gone, result.skipped) == (1, 1)
    assert "blue/new" in result.message


def test_a_later_drain_asks_for_a_checkpoint_of_its_own():
    first, resumed, later = state_of(), state_of(), state_of(started=seconds(60))
    assert first.token == resumed.token
    assert first.token != later.token
