"""JSON Schema of the policy file, for editors: completion, descriptions, and errors as one types.

An editor sees what a single field allows. What needs the whole file (names that nothing has, contradictions)
says `load_policy`.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gpu_runbooks.workflows.policy.fields import in_units
from gpu_runbooks.workflows.policy.policy import Policy

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = "urn:gpu-runbooks:policy"


def policy_schema() -> dict[str, Any]:
    """The schema, always in the same order."""
    schema = Policy.model_json_schema(mode="validation", schema_generator=_AsWritten)
    return {"$schema": DIALECT, "$id": IDENTIFIER, **schema, "title": "Policy file of gpu-runbooks"}


class _AsWritten(GenerateJsonSchema):
    """Shows defaults as a person writes them, and none where a whole section is the default."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False  # a title would only repeat the name

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        # Keys that are no names are errors, not keys of which nothing is known.
        return {**made, "additionalProperties": False} if "patternProperties" in made else made

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        default = schema.get("default")
        if default is None or isinstance(default, BaseModel | Mapping):
            made.pop("default", None)
        return made

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        # None is how a field that is left out reaches us; nobody writes `null`.
        return self.generate_inner(schema["schema"])

    def encode_default(self, dft: Any) -> Any:
        return in_units(dft) if isinstance(dft, timedelta) else super().encode_default(dft)
