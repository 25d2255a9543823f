"""What is kept of the nodes, and who is found by an instance."""

from typing import Any

from gpu_runbooks.activities.kubernetes.listing import Followed, Listing
from gpu_runbooks.workers.intake.fleet import Fleet, KeptNode, kept

INSTANCE = "i-0aaaaaaaaaaaaaaa1"


def node(name: str, instance: str = INSTANCE, created: str = "2026-03-01T10:00:00Z") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created},
        "spec": {"providerID": f"aws:///us-west-2a/{instance}"},
        "status": {"nodeInfo": {"bootID": "boot-1"}},
    }


def listed(*nodes: dict[str, Any]) -> Followed[KeptNode]:
    return Followed(Listing("1", [(each["metadata"]["uid"], kept(each, {})) for each in nodes], 0))


def event(kind: str, subject: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": subject}


def keep(subject: dict[str, Any]) -> KeptNode:
    return kept(subject, {})


def test_before_the_first_list_nobody_is_unknown() -> None:
    fleet = Fleet()
    assert not fleet.ready
    list(fleet.see(listed()))
    assert fleet.ready
    assert fleet.node_of_instance(INSTANCE) is None


def test_a_node_is_found_by_its_instance_until_it_goes() -> None:
    fleet, nodes = Fleet(), listed(node("a"), node("b", "i-0bbbbbbbbbbbbbbb2"))
    assert {uid for uid, _ in fleet.see(nodes)} == {"uid-a", "uid-b"}
    assert fleet.node_of_instance(INSTANCE) == "a"
    nodes.apply(event("MODIFIED", node("a", "i-0ccccccccccccccc3")), keep)
    assert [uid for uid, _ in fleet.see(nodes)] == ["uid-a"]
    assert (fleet.node_of_instance(INSTANCE), fleet.node_of_instance("i-0ccccccccccccccc3")) == (None, "a")
    nodes.apply(event("DELETED", node("b", "i-0bbbbbbbbbbbbbbb2")), keep)
    assert list(fleet.see(nodes)) == [("uid-b", None)]
    assert fleet.node_of_instance("i-0bbbbbbbbbbbbbbb2") is None


def test_a_new_list_shows_who_has_gone_without_an_event() -> None:
    fleet = Fleet()
    list(fleet.see(listed(node("a"), node("b"))))
    assert dict(fleet.see(listed(node("b"))))["uid-a"] is None
    assert fleet.node_of_instance(INSTANCE) == "b"


def test_of_two_nodes_of_one_instance_the_youngest_counts() -> None:
    fleet = Fleet()
    nodes = listed(node("young", created="2026-03-01T11:00:00Z"), node("old"))
    list(fleet.see(nodes))
    assert fleet.node_of_instance(INSTANCE) == "young"
    nodes.apply(event("DELETED", node("young")), keep)
    list(fleet.see(nodes))
    assert fleet.node_of_instance(INSTANCE) == "old"


def test_what_policy_looks_at_is_told_apart_and_no_other_label() -> None:
    bare, labelled = node("a"), node("a")
    labelled["metadata"]["labels"] = {"pool": "p5"}
    moved = node("a", "i-0bbbbbbbbbbbbbbb2")
    assert len({kept(each, {}, {"pool"}).covered for each in (bare, labelled, moved)}) == 3
    assert kept(bare, {}, {"zone"}).covered == kept(labelled, {}, {"zone"}).covered


def test_an_instance_that_aws_does_not_name_so_is_nobodys() -> None:
    fleet = Fleet()
    list(fleet.see(listed(node("a", "i-1/../../x"))))
    assert fleet.node_of_instance("i-1/../../x") is None
    assert fleet.node_of_instance("") is None


def test_half_a_character_breaks_nothing() -> None:
    odd = node("a", "\ud800")
    odd["status"]["conditions"] = [{"type": "T", "status": "True", "reason": "\ud800" * 1000}]
    (bad,) = kept(odd, {"T": frozenset({"True"})}, {"pool"}).conditions.bad
    assert bad.reason.isprintable()
