"""Pages of the book made by running the grader: kill table, field guide, index of exercises."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .audit import FUNCTIONS, Trial, trials
from .call import LocalRunner
from .drawing import draw_example
from .exercise import Exercise, Fault
from .mutate import try_mutants
from .shrink import Example, smallest_failure


@dataclass(frozen=True)
class Html:
    """Markup that a notebook shows as it is."""

    markup: str

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return f"<a table of {self.markup.count('<tr>')} rows>"


def kill_table(exercises: Iterable[Exercise], most_pairs: int = 30) -> Html:
    """What the grader made of every answer of known worth.

    Raises AssertionError if a right answer was rejected or a wrong one passed.
    """
    rows = "".join(map(str, (kill_row(exercise, most_pairs) for exercise in exercises)))
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("Exercise", "Kind", "Right, accepted", "Mistakes", "Pairs", "Mutants")
    )
    return table(head, rows)


def kill_row(exercise: Exercise, most_pairs: int) -> str:
    tried = list(trials(exercise, most_pairs=most_pairs))
    assert not [t for t in tried if t.kind in ("stub", "solution", "fault") and not t.holds], tried
    assert not [t for t in tried if t.kind == "pair" and t.got == "passed"], tried
    mutants = [
        mutant.outcome
        for solution in exercise.solutions
        if exercise.kind in ("implement", "fix") and solution.backend == "numpy"
        for mutant in try_mutants(exercise, solution)
    ]
    assert "passed" not in mutants
    equivalent = mutants.count("equivalent")
    cells = [
        f'<th scope="row"><code>{exercise.id}</code></th>',
        f"<td>{exercise.kind}</td>",
        f"<td>{share(tried, 'solution')}</td>",
        f"<td>{share(tried, 'fault', 'fitted')}</td>",
        f"<td>{share(tried, 'pair')}</td>",
        f"<td>{len(mutants) - equivalent} of {len(mutants)}"
        f"{f' ({equivalent} equivalent)' if equivalent else ''}</td>"
        if mutants
        else "<td></td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def share(tried: list[Trial], *kinds: str) -> str:
    """ "12 of 12", or nothing where there is nothing of the kind."""
    among = [t for t in tried if t.kind in kinds]
    return f"{sum(t.holds for t in among)} of {len(among)}" if among else ""


def index_table(exercises: Iterable[Exercise]) -> Html:
    """Every exercise with its kind and the backends in which it may be solved."""
    rows = "".join(
        f'<tr><th scope="row"><code>{e.id}</code></th><td>{html.escape(e.title)}</td>'
        f"<td>{e.kind}</td><td>{' or '.join(e.backends)}</td></tr>"
        for e in exercises
    )
    head = "".join(f'<th scope="col">{x}</th>' for x in ("Exercise", "Asks", "Kind", "In"))
    return table(head, rows)


def table(head: str, rows: str) -> Html:
    return Html(
        f'<table class="sdpa-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def field_guide(exercises: Iterable[Exercise]) -> Html:
    """Every mistake of these exercises with its smallest wrong output beside the right one.

    A mistake that several exercises share is shown once, with the first of them.
    """
    seen: dict[str, tuple[Exercise, Fault]] = {}
    for exercise in exercises:
        for fault in exercise.faults if exercise.kind in FUNCTIONS else ():
            seen.setdefault(fault.id, (exercise, fault))
    return Html("".join(entry(exercise, fault) for exercise, fault in seen.values()))


def entry(exercise: Exercise, fault: Fault) -> str:
    parts = [
        f'<section id="{fault.id}" class="sdpa-table"><h3><code>{fault.id}</code></h3>',
        f"<p><strong>{html.escape(fault.says)}</strong> {html.escape(fault.why)}</p>",
    ]
    found = smallest_failure(exercise, LocalRunner(exercise.variant(fault)))
    if found is not None:
        parts.append(drawn(found))
    parts += [f"<p>{line}</p>" for line in remarks(exercise, fault)]
    return "".join([*parts, "</section>"])


def drawn(example: Example) -> str:
    raised = example.actual.raised
    if raised:
        return f"<p>It raises <code>{html.escape(raised.type)}</code>.</p>"
    return draw_example(example.expected, example.actual.value)


def remarks(exercise: Exercise, fault: Fault) -> Iterator[str]:
    if fault.hidden:
        yield f"Hidden when: {html.escape(fault.hidden)}."
    yield f"Exercise: <code>{exercise.id}</code>."
    if fault.cite:
        yield f"Seen in: {html.escape(fault.cite)}."
