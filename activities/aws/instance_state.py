"""What is known of an EC2 instance from the answers about it, and from what was seen of it before.

EC2 is eventually consistent: it may not know a new instance for minutes, answer without one that it knows,
and it forgets a terminated one after about an hour. So "not found" alone is no state.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

STATES = frozenset({"pending", "running", "stopping", "stopped", "shutting-down", "terminated"})
GOING = frozenset({"shutting-down", "terminated"})
"""States from which an instance never comes back."""


class Seen(StrEnum):
    """What was seen of an instance before."""

    NEVER = "never"
    """Only a Node, or a person, named the id."""
    LAUNCHED = "launched"
    """AWS itself named the id, as one that it launches."""
    THERE = "there"
    """EC2 described it, in a state from which it may come back."""
    GOING = "going"
    """EC2 described it as shutting-down or terminated."""


class Odd(StrEnum):
    """An answer about an instance that is not one of its states."""

    NOT_FOUND = "not found"
    MALFORMED = "malformed"
    """No id can look like this."""
    ABSENT = "absent"
    """An answer without the instance."""


@dataclass(frozen=True)
class Known:
    """What is known now: exactly one of a state, a refusal, or nothing for the time being."""

    state: str = ""
    """One of `STATES`; terminated also for one that was seen going and is not found any more."""
    refused: bool = False
    """There is no such instance, and asking again will not help."""

    @property
    def unknown(self) -> bool:
        """Whether it has to be asked again. This is neither stopped nor gone."""
        return not self.state and not self.refused


def known_from(seen: Seen, answers: Iterable[str]) -> Known:
    """What is known after these answers (each a state or an `Odd`), oldest first."""
    known = Known()
    for answer in answers:
        known = _known_from_one(seen, answer)
        seen = seen_after(seen, answer)
    return known


def seen_after(seen: Seen, answer: str) -> Seen:
    """What was seen, once this answer has come too. Who was seen going stays so: answers may be old."""
    if answer in GOING or seen is Seen.GOING:
        return Seen.GOING
    return Seen.THERE if answer in STATES else seen


def _known_from_one(seen: Seen, answer: str) -> Known:
    if answer in GOING or (answer in STATES and seen is not Seen.GOING):
        return Known(state=answer)
    if answer == Odd.MALFORMED:
        return Known(refused=True)
    if answer == Odd.NOT_FOUND:
        if seen is Seen.GOING:
            return Known(state="terminated")
        return Known(refused=seen is Seen.NEVER)
    return Known()  # absent, a state that nobody has heard of, or an old one of an instance seen going
