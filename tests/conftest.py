"""Fixtures of the tests."""

import pytest
from helpers import Backend


@pytest.fixture(scope="session", params=["numpy", "torch"])
def backend(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return Backend(request.param)
