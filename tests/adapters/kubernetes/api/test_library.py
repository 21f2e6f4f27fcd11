"""The start of a daemon imports only what connects."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_generated_model_is_imported_with_the_client():
    code = "import sys, autoscaler.adapters.kubernetes.api.client as api; print(*sys.modules)\n"
    code += "from kubernetes_asyncio.client import ApiClient, AppsV1Api, V1Pod\n"  # whoever wants more has all
    code += "assert api.ApiClient is ApiClient and AppsV1Api and V1Pod().to_dict()"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "kubernetes_asyncio.config.kube_config" in loaded
    assert len([name for name in loaded if name.startswith("kubernetes_asyncio")]) < 30
