"""Fixtures of the tests."""

import os

import pytest
from helpers import Backend

os.environ["SDPA_PROGRESS"] = "off"  # a test is no attempt of the learner


@pytest.fixture(scope="session", params=["numpy", "torch"])
def backend(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return Backend(request.param)
