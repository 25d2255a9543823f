"""What a person ordered of a pool or of all, until it is known who it was. Pure."""

from collections.abc import Iterable
from datetime import datetime

from pydantic import BaseModel


class Heard(BaseModel):
    """An order, as it was noted."""

    update: str
    """Id of the update."""
    operator: str
    at: datetime
    note: str
    """Names the operator behind `by`."""

    def signed_notes(self, notes: Iterable[str], identity: str) -> list[str]:
        """The notes, with the identity in this one."""
        by = f" by {self.operator}"
        said = self.note.replace(by, f"{by} (identity {identity})", 1)
        return [
            note.removesuffix(self.note) + said if note.endswith(f" {self.note}") else note for note in notes
        ]
