"""What a list or a watch says, taken apart so that one odd object hides no other. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpu_runbooks.activities.kubernetes.error import Object

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Listing(Generic[Kept]):
    """A collection at one moment, all pages in one."""

    version: str
    """Resource version: where a watch goes on."""
    items: list[Kept]
    """The objects that can be read, or what is kept of each."""
    unreadable: int
    """Objects that cannot. Where there are any, no `items` does not mean that there is nothing."""


@dataclass(frozen=True)
class Page(Generic[Kept]):
    """One answer to a list."""

    version: str
    items: list[Kept]
    oddities: list[str]
    """What is wrong with each object that cannot be read."""
    rest: str
    """Token of the next page; empty on the last."""


def page_of(answer: Object, keep: Callable[[Object], Kept]) -> Page[Kept] | None:
    """A page, with what `keep` makes of each object.

    None for an answer that is no list: that is unknown, and not empty. `items` may be null, as servers write
    an empty list in Go, but not missing.
    """
    metadata = _mapping(answer.get("metadata"))
    version, items = metadata.get("resourceVersion"), answer.get("items", "")
    if not isinstance(version, str) or not version or not isinstance(items, list | None):
        return None
    if not str(answer.get("kind")).endswith("List"):
        return None
    oddities = [(item, oddity(item)) for item in items or ()]
    return Page(
        version=version,
        items=[keep(item) for item, odd in oddities if not odd],
        oddities=[odd for _, odd in oddities if odd],
        rest=str(metadata.get("continue") or ""),
    )


def oddity(item: Any) -> str:
    """Why an object cannot be worked with: nobody could say which one it is. Empty for one that can."""
    if not isinstance(item, dict):
        return f"no object but {type(item).__name__}"
    if not item:
        return "no object"
    metadata = _mapping(item.get("metadata"))
    name, uid = metadata.get("name"), metadata.get("uid")
    if not isinstance(uid, str) or not uid:
        return f"an object without metadata.uid, name {name!r}"
    if not isinstance(name, str) or not name:
        return f"an object without metadata.name, uid {uid}"
    return ""


def objects_in(values: Any) -> list[Object]:
    """The objects of a list inside an object. What is none, such as null, says nothing and is left out."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def by_uid(items: Iterable[Object]) -> dict[str, Object]:
    return {item["metadata"]["uid"]: item for item in items}


class Followed(dict[str, Kept]):
    """A followed collection, or what is kept of it, by UID. It is live: the next event changes it."""

    def __init__(self, listing: Listing[tuple[str, Kept]]) -> None:
        super().__init__(listing.items)
        self.version = listing.version
        """Where a watch goes on."""
        self.changed: frozenset[str] = frozenset(self)
        """UIDs that came, changed or went by the last event; all of them after a list."""

    def apply(self, event: Object, keep: Callable[[Object], Kept]) -> bool:
        """Apply a watch event. False: an error, half an event, an odd object or type, so list again."""
        kind, subject = event.get("type"), event.get("object")
        version = _mapping(_mapping(subject).get("metadata")).get("resourceVersion")
        if kind == "BOOKMARK":
            self.changed = frozenset()
        elif kind not in {"ADDED", "MODIFIED", "DELETED"} or oddity(subject) or not isinstance(subject, dict):
            return False
        else:
            uid = subject["metadata"]["uid"]
            self.changed = frozenset({uid})
            if kind == "DELETED":
                self.pop(uid, None)
            else:
                self[uid] = keep(subject)
        if isinstance(version, str) and version:
            self.version = version
        return True


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
