"""The section `hardware`: what a healthy node of an instance type has, over the built-in table."""

from typing import Annotated

from pydantic import Field, model_validator

from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workflows.policy.fields import Flag, Written


class Hardware(Written):
    """What a healthy node of an instance type has; what is left out is that of the built-in table."""

    gpus: Annotated[int | None, Field(ge=1, le=64, strict=True)] = None
    """How many GPUs it has."""
    efa_interfaces: Annotated[int | None, Field(ge=0, le=128, strict=True)] = None
    """How many EFA interfaces are attached to it, which may be fewer than the type can have."""
    nvlink: Flag | None = None
    """Whether NVLink connects its GPUs."""

    @model_validator(mode="after")
    def _says_something(self) -> "Hardware":
        if not self.written:
            raise ValueError("it says nothing: write gpus, efa_interfaces or nvlink")
        return self

    @property
    def written(self) -> dict[str, int | bool]:
        """The fields that are written."""
        return {name: value for name, value in self if value is not None}

    def over(self, base: ExpectedHardware | None, instance_type: str) -> ExpectedHardware | None:
        """What counts: what is written here, else the built-in entry. None where neither says all of it."""
        if base is not None:
            return base.model_copy(update=self.written)
        if len(self.written) < len(type(self).model_fields):
            return None
        return ExpectedHardware.model_validate({"instance_type": instance_type, **self.written})
