"""The cluster-worker does not start with a place for evidence that is none."""

import asyncio
from pathlib import Path

import pytest

from gpu_runbooks.workers import cluster_worker
from gpu_runbooks.workers.settings import Settings

POLICY = Path(__file__).parents[2] / "deploy" / "testbed" / "policy.yaml"


async def test_a_bad_setting_is_refused_before_anything_is_done(monkeypatch):
    monkeypatch.setenv("GPU_RUNBOOKS_EVIDENCE", "s3:/bucket")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ValueError, match="GPU_RUNBOOKS_EVIDENCE=s3:/bucket is no place for evidence"):
        await cluster_worker.run(Settings(policy=POLICY), asyncio.Event())
