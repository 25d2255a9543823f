"""What a list or a watch says, taken apart so that one odd object hides no other. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_runbooks.activities.kubernetes.error import Object


@dataclass(frozen=True)
class Listing:
    """A collection at one moment, all pages in one."""

    version: str
    """Resource version: where a watch goes on."""
    items: list[Object]
    """The objects that can be read."""
    unreadable: int
    """Objects that cannot. Where there are any, no `items` does not mean that there is nothing."""


@dataclass(frozen=True)
class Page:
    """One answer to a list."""

    version: str
    items: list[Object]
    oddities: list[str]
    """What is wrong with each object that cannot be read."""
    rest: str
    """Token of the next page; empty on the last."""


def page_of(answer: Object) -> Page | None:
    """None for an answer that is no list: that is unknown, and not empty.

    `items` may be null, as servers write an empty list in Go, but not missing.
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
        items=[item for item, odd in oddities if not odd],
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


def applied(event: Object, objects: dict[str, Object]) -> bool:
    """Apply a watch event. False: an error, half an event, an odd object or type, so list again."""
    subject = event.get("object")
    kind = event.get("type")
    if kind == "BOOKMARK":
        return True
    if oddity(subject) or not isinstance(subject, dict):
        return False
    uid = subject["metadata"]["uid"]
    match kind:
        case "ADDED" | "MODIFIED":
            objects[uid] = subject
            return True
        case "DELETED":
            objects.pop(uid, None)
            return True
        case _:
            return False


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
