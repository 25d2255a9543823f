"""Who said something to a workflow, as the server saw it."""

from pydantic import Field

from gpu_runbooks.activities.model.wire import Wire


class FindSpeakers(Wire):
    """Ask the history of a run who sent these updates, or started it."""

    workflow_id: str
    run_id: str
    updates: tuple[str, ...]
    """Ids of updates; an empty one stands for the start of the run."""


class Speakers(Wire):
    """The identities that were found."""

    identities: dict[str, str] = Field(default={})
    """By the id of the update: what the client says of itself, and the authenticated principal if any."""
