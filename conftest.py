"""What pytest does everywhere in the repository: packages, doctests and notebooks."""

import importlib.util
import os

import pytest
from hypothesis import settings

TORCH_IS_HERE = importlib.util.find_spec("torch") is not None

# A script with arguments, which other tests start.
collect_ignore = ["sdpa_course/grading/child.py"]
# Modules of these need torch when they are imported, as their doctests are run.
NEED_TORCH = ["sdpa_course/with_torch/*", "tests/torch_*"]
collect_ignore_glob = [] if TORCH_IS_HERE else NEED_TORCH

settings.register_profile("course", deadline=None, print_blob=True)  # a busy machine is no failure
settings.register_profile("ci", parent=settings.get_profile("course"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "course")

os.environ["SDPA_PROGRESS"] = "off"  # tests and notebooks leave a learner's progress alone

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread each, since the workers already use every core
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """A notebook's cell tagged `needs-torch` is skipped where torch is absent."""
    if TORCH_IS_HERE:
        return
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and "needs-torch" in cell.metadata.get("tags", []):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
