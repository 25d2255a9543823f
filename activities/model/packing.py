"""Text made small enough for a payload, and back."""

import base64
import zlib
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

PLAIN = 2048
"""Characters of names up to which a person finds them written out in the history."""


def pack(text: str) -> str:
    """A text in a sixth to a third of its room, by what repeats in it."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: str) -> str:
    """The text. Raises `ValueError` for what is none of ours."""
    try:
        return zlib.decompress(base64.b64decode(packed)).decode()
    except zlib.error as error:
        raise ValueError(f"what was packed cannot be read: {error}") from error


def written_names(names: Iterable[str]) -> list[str] | str:
    """A list, or where that is long a packed one: most of a name is the same in all of a pool."""
    plain = list(names)
    return plain if sum(map(len, plain)) <= PLAIN else pack("\n".join(plain))


def _read_names(value: Any) -> Any:
    return tuple(unpack(value).split("\n")) if isinstance(value, str) else value


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_names),
    PlainSerializer(written_names, return_type=list[str] | str, when_used="json"),
]
"""Names of nodes, of which 2,000 as EC2 gives them fit into 13 KB."""
