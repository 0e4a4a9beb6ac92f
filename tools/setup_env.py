"""Make the course's virtual environment, or bring it up to date; a second run has nothing to do and takes no time.

    python tools/setup_env.py [--venv .venv] [--torch auto|cpu|default|none]

--torch says which build of PyTorch to install:
  auto     with an NVIDIA GPU the default build, else the CPU build, else none: never CUDA for a machine that has no use for it
  cpu      the CPU build or an error
  default  what the package index gives; on Linux that is a CUDA build of several GB
  none     none: the NumPy chapters, exercises and grader work without it
Without --torch the last choice made for this environment holds, and `auto` where none was made.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from progress import Steps, run_logged, say, tail

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = [(3, 11), (3, 12), (3, 13)]
REQUIREMENTS = ROOT / "requirements.txt"
TORCH_REQUIREMENTS = ROOT / "requirements-torch.txt"
CPU_INDEX = (
    "https://download.pytorch.org/whl/cpu"  # documented at https://pytorch.org/get-started/locally/
)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--venv", default=".venv")
    arguments.add_argument("--torch", choices=["auto", "cpu", "default", "none", ""], default="")
    arguments = arguments.parse_args()
    use_supported_python()

    venv = Path(arguments.venv).absolute()
    stamp = venv / "sdpa-course.json"
    done = json.loads(stamp.read_text()) if stamp.exists() else {}
    torch = arguments.torch or done.get("torch") or "auto"
    wanted = {
        "python": platform.python_version(),
        "requirements": digest(REQUIREMENTS),
        "torch": torch,
        "torch_requirements": digest(TORCH_REQUIREMENTS),
        "course": digest(ROOT / "pyproject.toml") + str(ROOT),
    }
    if done == wanted and python_of(venv).exists():
        say(
            f"Environment {arguments.venv}: up to date (Python {wanted['python']}, {installed_torch(venv)})"
        )
        return

    def record(*parts: str) -> None:
        done.update({part: wanted[part] for part in parts})
        stamp.write_text(json.dumps(done, indent=1))

    step = Steps("environment", 4)
    if done.get("python") == wanted["python"]:
        step(f"{arguments.venv} has Python {wanted['python']}")
    else:
        step(f"Making {arguments.venv} with Python {wanted['python']}")
        make_venv(venv)
        done.clear()
        record("python")

    if done.get("requirements") == wanted["requirements"]:
        step("requirements.txt is installed")
    else:
        step(
            f"Installing requirements.txt ({count_pins(REQUIREMENTS)} packages, about 150 MB the first time)"
        )
        pip(venv, "install", "-r", str(REQUIREMENTS))
        record("requirements")

    step("PyTorch:")
    provide_torch(venv, torch)
    record("torch", "torch_requirements")

    step("Installing the course's own package, sdpa-course")
    pip(venv, "install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    record("course")
    say(f"Environment {arguments.venv}: ready (Python {wanted['python']}, {installed_torch(venv)})")


def use_supported_python() -> None:
    """Go on in a Python that the course supports: this one, or one found on the PATH."""
    if sys.version_info[:2] in SUPPORTED:
        return
    for minor in (13, 12, 11):
        other = shutil.which(f"python3.{minor}")
        if other and subprocess.run([other, "-c", ""], capture_output=True).returncode == 0:
            say(f"Python {platform.python_version()} is not supported, going on with {other}")
            sys.exit(subprocess.call([other, *sys.argv]))
    sys.exit(
        f"The course needs Python 3.11, 3.12 or 3.13; this is {platform.python_version()}.\n"
        "Name another interpreter: make course PYTHON=/path/to/python3.12"
    )


def make_venv(venv: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True
    )
    if made.returncode != 0:
        sys.exit(
            f"{made.stdout}{made.stderr}\nThis Python could not make a virtual environment (see above)."
        )


def provide_torch(venv: Path, choice: str) -> None:
    """Install the build of PyTorch that suits the machine, and say which it is and why."""
    version = pinned_torch()
    if choice == "none":
        say(
            "    left out, as asked (TORCH=none): the NumPy chapters, exercises and grader work without it"
        )
        if installed_torch(venv) != NO_TORCH:
            pip(venv, "uninstall", "-y", "torch")
    elif installed_torch(venv).startswith(f"torch {version}") and choice in ("auto", "cpu"):
        say(f"    {installed_torch(venv)} is there already")
    elif choice == "default":
        say(f"    installing the default build of torch {version}, as asked (TORCH=default)")
        install_torch(venv, version)
    elif choice == "auto" and (gpu := nvidia_gpu()):
        say(
            f"    found {gpu}: installing the default build of torch {version}, several GB with its CUDA libraries"
        )
        install_torch(venv, version)
    elif platform.system() in ("Darwin", "Windows"):
        say(f"    installing torch {version}; on this system the default build is the CPU build")
        install_torch(venv, version)
    else:
        provide_cpu_torch(venv, version, required=choice == "cpu")


def provide_cpu_torch(venv: Path, version: str, required: bool) -> None:
    """The CPU build: from PyTorch's own index, or from wherever pip is set up to look; never a CUDA build in its place."""
    if reachable(CPU_INDEX):
        source, options = (
            f"PyTorch's index of CPU builds, {CPU_INDEX}",
            ["--extra-index-url", CPU_INDEX],
        )
    else:
        source, options = f"where pip is set up to look ({CPU_INDEX} cannot be reached)", []
    build = f"{version}+cpu"
    if build in offered_versions(venv, options):
        say(f"    no NVIDIA GPU: installing the CPU build, torch {build}, from {source}")
        install_torch(venv, build, options)
        return
    message = (
        f"    no NVIDIA GPU, and no CPU build of torch {version} for Python {platform.python_version()} {source}.\n"
        "    The default build would bring several GB of CUDA libraries: TORCH=default accepts that."
    )
    if required:
        sys.exit(message)
    say(f"{message}\n    Going on without torch: the NumPy chapters, exercises and grader work.")


def install_torch(venv: Path, version: str, options: list = ()) -> None:
    # The other pins keep what torch needs in place; its own line is replaced by the build chosen.
    needs = [line for line in pins(TORCH_REQUIREMENTS) if not line.startswith("torch==")]
    pip(venv, "install", f"torch=={version}", *needs, *options)


def pinned_torch() -> str:
    return next(line for line in pins(TORCH_REQUIREMENTS) if line.startswith("torch==")).partition(
        "=="
    )[2]


NO_TORCH = "without torch"


def installed_torch(venv: Path) -> str:
    code = "import importlib.metadata as m; print('torch', m.version('torch'))"
    found = subprocess.run([str(python_of(venv)), "-c", code], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else NO_TORCH


def nvidia_gpu() -> str:
    """The first NVIDIA GPU's name, or ''."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = listed.stdout.partition("\n")[0]
    return (
        first.partition(" (UUID")[0] if listed.returncode == 0 and first.startswith("GPU") else ""
    )


def reachable(index: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def offered_versions(venv: Path, options: list) -> list:
    """The versions of torch that pip could install into this environment."""
    command = [str(python_of(venv)), "-m", "pip", "index", "versions", "torch", *options]
    answer = subprocess.run(command, capture_output=True, text=True)
    listed = re.search(r"Available versions: (.*)", answer.stdout)
    return listed.group(1).split(", ") if listed else []


def pip(venv: Path, *arguments: str) -> None:
    log = venv / "pip.log"
    command = [str(python_of(venv)), "-m", "pip", "--disable-pip-version-check", *arguments]
    if not run_logged(command, log, env={**os.environ, "PYTHONUNBUFFERED": "1"}):
        sys.exit(f"{tail(log)}\n\npip failed (above: the end of {log}).")


def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pins(path: Path) -> list:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def count_pins(path: Path) -> int:
    return len(pins(path))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    main()
