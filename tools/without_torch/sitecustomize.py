"""With this folder on PYTHONPATH, Python is as if torch were not installed."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]
