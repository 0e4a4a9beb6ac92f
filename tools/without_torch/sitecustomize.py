"""With this folder on PYTHONPATH, Python is as if torch were not installed."""

import sys
from importlib.machinery import PathFinder


class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] != "torch":
            return super().find_spec(fullname, path, target)
        return None


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
