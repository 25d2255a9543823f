"""What is wrong with the section `hardware` beside the built-in table. Pure."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from gpu_runbooks.activities.aws.instance_types import expected_hardware, known_types
from gpu_runbooks.workflows.policy.fields import INSTANCE_TYPE
from gpu_runbooks.workflows.policy.hardware import Hardware
from gpu_runbooks.workflows.policy.rules import Contradiction
from gpu_runbooks.workflows.policy.yaml_lines import Place


def hardware_contradictions(hardware: Mapping[str, Hardware]) -> Iterator[Contradiction]:
    """Yield every type of which neither file nor table says all."""
    for instance_type, written in hardware.items():
        place: Place = ("hardware", instance_type)
        if not INSTANCE_TYPE.fullmatch(instance_type):
            continue  # an error of its own
        if written.over(expected_hardware(instance_type), instance_type) is None:
            missing = [name for name in Hardware.model_fields if name not in written.written]
            close = get_close_matches(instance_type, known_types(), n=1)
            guess = f"did you mean {close[0]}? " if close else ""
            yield Contradiction(
                place,
                f"the built-in table does not have the hardware of {instance_type}: {guess}Write "
                f"{', '.join(missing)} too",
            )
