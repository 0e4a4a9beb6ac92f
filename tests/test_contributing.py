"""The examples in CONTRIBUTING.md do what it says they do."""

import linecache
import re
from pathlib import Path

from sdpa_course.grading.answers import check_answer
from sdpa_course.grading.audit import audit

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXERCISE, MISTAKE = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def declared(*blocks):
    """The exercise of these blocks, as if they stood in a module."""
    source, name = "\n\n".join(blocks), "<contributing>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace["EXERCISES"][0], namespace


def mean_value(v):
    return v.sum(axis=-2)


def test_the_example_exercise_is_sound():
    exercise, _ = declared(EXERCISE)
    tried, refused = audit(exercise)
    assert [t for t in tried if not t.holds] == []
    assert refused == []


def test_a_new_mistake_is_named_once_it_is_declared():
    before, _ = declared(EXERCISE)
    after, _ = declared(EXERCISE, MISTAKE)
    assert check_answer(before, mean_value).faults == []
    assert check_answer(after, mean_value).faults == ["mean.sum"]
    assert audit(after)[1] == []
