from datetime import timedelta

import pytest
from pydantic import ValidationError

from gpu_runbooks.activities.karpenter.repair_policies import (
    provider_of,
    read_table,
    repaired_by,
    repaired_conditions,
)

HEADER = "provider,condition,status,toleration_seconds,source\n"


def test_karpenter_on_aws_gives_a_broken_gpu_ten_minutes():
    tolerations = {(row.condition, row.status): row.toleration for row in repaired_by("aws")}
    assert tolerations["AcceleratedHardwareReady", "False"] == timedelta(minutes=10)
    assert tolerations["Ready", "Unknown"] == timedelta(minutes=30)
    assert ("AcceleratedHardwareReady", "Unknown") not in tolerations


def test_every_row_names_its_source():
    assert all(row.source for row in repaired_conditions())


@pytest.mark.parametrize(
    ("provider_id", "provider"),
    [
        ("aws:///eu-north-1a/i-0aaaaaaaaaaaaaaa1", "aws"),
        ("kwok://kwok-gpu-x1", "kwok"),
        ("gce://project/zone/name", "gcp"),
        ("oci://ocid1.instance", ""),
        ("ocid1.instance", ""),
        ("aws", ""),
        ("", ""),
    ],
)
def test_provider_of_a_node(provider_id, provider):
    assert provider_of(provider_id) == provider


def test_a_row_that_is_there_twice_is_refused():
    row = "aws,Ready,False,1800,here\n"
    with pytest.raises(ValueError, match="aws: Ready=False is listed twice"):
        read_table(HEADER + row + row)


@pytest.mark.parametrize(
    "row",
    ["aws,Ready,Maybe,1800,here", "aws,Ready,False,soon,here", "aws,Ready,False,-1,here", "aws,Ready,False"],
)
def test_a_row_that_cannot_be_read_is_refused(row):
    with pytest.raises(ValidationError):
        read_table(HEADER + row)
