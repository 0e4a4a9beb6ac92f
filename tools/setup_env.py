"""Make the course's virtual environment, or bring it up to date. A second run takes no time.

    python tools/setup_env.py [--venv .venv] [--torch auto|cpu|default|none]

--torch says which build of PyTorch to install:
  auto     with an NVIDIA GPU the default build, else the CPU build, else none
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
from collections.abc import Sequence
from pathlib import Path

from progress import Steps, run_logged, say, tail

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = [(3, 11), (3, 12), (3, 13)]
REQUIREMENTS = ROOT / "requirements.txt"
TORCH_REQUIREMENTS = ROOT / "requirements-torch.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # from https://pytorch.org/get-started/locally/
NO_TORCH = "without torch"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", default=".venv")
    parser.add_argument("--torch", choices=["auto", "cpu", "default", "none", ""], default="")
    arguments = parser.parse_args()
    use_supported_python()

    venv = Path(arguments.venv).absolute()
    stamp = venv / "sdpa-course.json"
    done = json.loads(stamp.read_text()) if stamp.exists() else {}
    torch = arguments.torch or done.get("torch") or "auto"
    wanted = {
        "python": platform.python_version(),
        "requirements": digest(REQUIREMENTS),
        "torch": torch,
        "torch pins": digest(TORCH_REQUIREMENTS),
        "package": f"{ROOT} {digest(ROOT / 'pyproject.toml')}",
    }
    if done == wanted and python_of(venv).exists():
        say(f"Environment: up to date ({describe(venv)})")
        return

    def still(*parts: str) -> bool:
        return all(done.get(part) == wanted[part] for part in parts)

    def record(*parts: str) -> None:
        done.update({part: wanted[part] for part in parts})
        stamp.write_text(json.dumps(done, indent=1))

    step = Steps("environment", 4)
    if python_version_in(venv) == wanted["python"]:
        step(f"{arguments.venv} has Python {wanted['python']}")
    else:
        step(f"Making {arguments.venv} with Python {wanted['python']}")
        make_venv(venv)
        done.clear()
    record("python")

    step(f"{len(pins(REQUIREMENTS))} packages of requirements.txt, about 150 MB the first time")
    if not still("requirements"):
        pip(venv, "install", "-r", str(REQUIREMENTS))
        # On its first import matplotlib lists the fonts, and may say so on a notebook's stderr.
        subprocess.run([str(python_of(venv)), "-c", "import matplotlib.font_manager"], check=True)
        record("requirements")

    step("PyTorch")
    if not still("torch", "torch pins"):
        provide_torch(venv, torch)
        record("torch", "torch pins")

    step("The course's own package, sdpa-course")
    if not still("package"):
        pip(venv, "install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
        record("package")
    say(f"Environment: ready ({describe(venv)})")


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
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"{made.stdout}{made.stderr}\nThis Python could not make a virtual environment.")


def provide_torch(venv: Path, choice: str) -> None:
    """Install the build of PyTorch that suits the machine, and say which it is and why."""
    version, present = pinned_torch(), installed_torch(venv)
    if choice == "none":
        say("    left out (TORCH=none): the NumPy chapters, exercises and grader work without it")
        if present != NO_TORCH:
            pip(venv, "uninstall", "-y", "torch")
    elif choice in ("auto", "cpu") and present.startswith(f"torch {version}"):
        say(f"    {present} is there already")
    elif choice == "default":
        say(f"    the default build of torch {version} (TORCH=default)")
        if present.endswith("+cpu"):
            pip(venv, "uninstall", "-y", "torch")  # for pip, 2.0+cpu is as good as 2.0
        install_torch(venv, version)
    elif choice == "auto" and (gpu := nvidia_gpu()):
        say(f"    {gpu}: the default build of torch {version}, several GB with its CUDA libraries")
        install_torch(venv, version)
    elif platform.system() in ("Darwin", "Windows"):
        say(f"    torch {version}; on this system the default build is the CPU build")
        install_torch(venv, version)
    else:
        provide_cpu_torch(venv, version, required=choice == "cpu")


def provide_cpu_torch(venv: Path, version: str, required: bool) -> None:
    """The CPU build, from PyTorch's own index or where pip is set up to look; CUDA never."""
    build = f"{version}+cpu"
    if reachable(CPU_INDEX):
        source, options = f"from {CPU_INDEX}", ["--extra-index-url", CPU_INDEX]
    else:
        say(f"    {CPU_INDEX} does not answer; asking where pip is set up to look")
        source, options = "from there", []
    if build in offered_versions(venv, options):
        say(f"    no NVIDIA GPU: the CPU build, torch {build}, {source}")
        install_torch(venv, build, options)
        return
    say(f"    no NVIDIA GPU, and no CPU build of torch {version} for this Python {source}.")
    say("    The default build brings several GB of CUDA libraries; TORCH=default accepts that.")
    if required:
        sys.exit(1)
    say("    Going on without torch: the NumPy chapters, exercises and grader work.")


def install_torch(venv: Path, version: str, options: Sequence[str] = ()) -> None:
    needs = [line for line in pins(TORCH_REQUIREMENTS) if not line.startswith("torch==")]
    pip(venv, "install", f"torch=={version}", *needs, *options)


def describe(venv: Path) -> str:
    return f"Python {platform.python_version()}, {installed_torch(venv)}"


def python_version_in(venv: Path) -> str:
    """The version of the environment's Python, or '' where there is no working one."""
    code = "import platform; print(platform.python_version())"
    try:
        found = subprocess.run([str(python_of(venv)), "-c", code], capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip()


def pinned_torch() -> str:
    return next(line for line in pins(TORCH_REQUIREMENTS) if line.startswith("torch==")).partition(
        "=="
    )[2]


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


def offered_versions(venv: Path, options: Sequence[str]) -> list:
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


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    main()
