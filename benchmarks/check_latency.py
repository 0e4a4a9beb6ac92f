"""How long a check takes, and what importing the package costs.

    python benchmarks/check_latency.py [EXERCISE ...]

Medians: a right answer, one mistake, two and three at once. The
import is timed in fresh interpreters, as a ratio to `import numpy` in the same run. The arrays are
too small for NumPy to use a second thread.
"""

import statistics
import subprocess
import sys
import time

from sdpa_course.exercises import all_exercises, find
from sdpa_course.grading.audit import judge

AT_MOST = 60
IMPORTS = ("import numpy", "import sdpa_course", "import sdpa_course.with_numpy")


def main(names: list[str]) -> None:
    print("Import, median of 15 fresh interpreters")
    times = {line: [] for line in ("pass", *IMPORTS)}
    for _ in range(15):
        for line, found in times.items():
            found.append(
                timed(lambda line=line: subprocess.run([sys.executable, "-c", line], check=True))
            )
    bare = statistics.median(times.pop("pass"))
    base = statistics.median(times["import numpy"]) - bare
    for line, found in times.items():
        ratio = (statistics.median(found) - bare) / base
        print(f"  {line:<32} {1e3 * (statistics.median(found) - bare):6.0f} ms  {ratio:.2f} x")
    loaded = "import sys, sdpa_course; print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", loaded], check=True, capture_output=True, text=True
    )
    print(f"  of torch and matplotlib it imports: {shown.stdout.strip()}")

    print(f"\n{'Check, median ms':<40}{'right':>8}{'one':>8}{'two':>8}{'three':>8}")
    worst = [0.0] * 4
    for exercise in [find(name) for name in names] or all_exercises():
        if exercise.kind not in ("implement", "fix"):
            continue
        judge(exercise)  # the probes are made at the first check
        row = [median_check(exercise, size) for size in range(4)]
        worst = [max(w, r or 0) for w, r in zip(worst, row, strict=True)]
        print(f"{exercise.id:<40}" + "".join(f"{r:8.1f}" if r else f"{'-':>8}" for r in row))
    print(f"{'slowest':<40}" + "".join(f"{w:8.1f}" for w in worst))


def median_check(exercise, size: int) -> float | None:
    """Milliseconds of a check with so many mistakes at once; None where none compose."""
    sets = list(exercise.combinations(size)) if size else [()] * 15
    some = sets[:: max(1, -(-len(sets) // AT_MOST))]
    found = [timed(lambda faults=faults: judge(exercise, *faults)) for faults in some]
    return 1e3 * statistics.median(found) if found else None


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
