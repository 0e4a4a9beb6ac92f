"""A continuous setting: fitted to the learner's output, then named through the dimensions.

Nobody can list every wrong factor. But one number explains a whole array of outputs only if it is
the number the learner used, so it can be solved for, and ``4.0`` where ``d_k`` is 8 and ``5.5``
where it is 11 is ``d_k/2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from .call import Outcome
from .compare import MATCH, distance
from .exercise import Exercise, Fault, Fit, Probe

Dims = Mapping[str, int]


def fitted_fault(
    exercise: Exercise,
    fit: Fit,
    others: tuple[Fault, ...],
    evidence: Sequence[tuple[Probe, Outcome]],
    match: float = MATCH,
) -> Fault | None:
    """The fault "this switch is set to this number", with its name; None if no number fits.

    The number may depend on the dimensions, so it is fitted on each probe by itself. It must
    explain every probe that returned numbers. If it is no constant and has no name, it must do so
    without the help of another fault, and is said to be different for different sizes.
    """
    switches = {name: value for fault in others for name, value in fault.switches.items()}

    def output(value: float, probe: Probe) -> Any:
        return exercise.run(**probe.inputs, **switches, **{fit.switch: fit.setting(value)})

    numbers = [(p, o) for p, o in evidence if o.raised is None and p.dims]
    values: list[float] = []
    for probe, outcome in numbers[:4]:
        value = solve(lambda c, probe=probe: output(c, probe), outcome.value, fit, match)  # type: ignore[misc]
        if value is None:
            return None
        values.append(value)
    named = name_value(values, [p.dims for p, _ in numbers[:4]])
    if named is None:
        if others or fit.integer or len(numbers) < 3:
            return None
        for probe, outcome in numbers[4:]:
            value = solve(lambda c, probe=probe: output(c, probe), outcome.value, fit, match)  # type: ignore[misc]
            if value is None:
                return None
            values.append(value)
        named = without_name(values, [p.dims for p, _ in numbers])
    text, formula = named
    for probe, outcome in evidence:
        if outcome.raised is not None:
            continue
        try:
            with np.errstate(all="ignore"):
                again = np_value(output(formula(probe.dims), probe))
        except Exception:
            return None
        if distance(again, outcome.value) > match:
            return None
    dims = numbers[0][0].dims
    right = fit.right(dims)
    if math.isclose(values[0], right, rel_tol=min(1e-6, match)):
        return None  # the right setting: nothing to name
    says = fit.says.format(
        **{**dims, "found": text, "value": f"{values[0]:.4g}", "right": f"{right:.4g}"}
    )
    return Fault(
        fit.id, says, fit.why, fit.link, fit.hint, switches={fit.switch: fit.setting(values[0])}
    )


def np_value(value: Any) -> Any:
    return tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value)


def solve(
    output: Callable[[float], Any], target: Any, fit: Fit, match: float = MATCH
) -> float | None:
    """The number c for which ``output(c)`` is the target: a grid, then Gauss–Newton steps."""
    if not isinstance(target, (np.ndarray, tuple)):
        return None
    goal = flat(target)

    def residual(c: float) -> np.ndarray | None:
        try:
            with np.errstate(all="ignore"):
                r = flat(output(c))
        except Exception:  # a combination of settings that no array goes through
            return None
        if r.shape != goal.shape:
            return None
        same = ~np.isfinite(r) & ~np.isfinite(goal)
        return np.where(same, 0.0, r - goal)

    best, c = math.inf, 0.0
    for start in fit.grid:
        r = residual(start)
        if r is None or not np.isfinite(r).all():
            continue
        with np.errstate(over="ignore"):
            gap = float(r @ r)
        if gap < best:
            best, c = gap, start
    if math.isinf(best):
        return None
    size = float(np.abs(goal[np.isfinite(goal)]).max(initial=1e-6))
    if fit.integer:
        return c if best <= (match * size) ** 2 * goal.size else None
    for _ in range(25):
        r = residual(c)
        step = 1e-6 * max(abs(c), 1e-6)
        ahead = residual(c + step)
        if r is None or ahead is None or not (np.isfinite(r).all() and np.isfinite(ahead).all()):
            return None
        if np.abs(r).max() <= 1e-3 * match * size:
            return c
        slope = (ahead - r) / step
        if not (norm := float(slope @ slope)):
            break
        c -= float(np.clip(slope @ r / norm, -0.5 * abs(c), 0.5 * abs(c)))
    r = residual(c)
    return c if r is not None and np.abs(r).max() <= match * size else None


def flat(value: Any) -> np.ndarray:
    parts = value if isinstance(value, tuple) else (value,)
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])


def name_value(
    values: Sequence[float], dims: Sequence[Dims]
) -> tuple[str, Callable[[Dims], float]] | None:
    """The shortest expression in the dimensions that has these values: ``("d_k/2", formula)``.

    A number that is the same on every probe is its own name.

    >>> name_value([4.0, 5.5], [{"d_k": 8, "L": 3}, {"d_k": 11, "L": 5}])[0]
    'd_k/2'
    """
    if not values:
        return None
    if all(math.isclose(v, values[0], rel_tol=1e-5, abs_tol=1e-9) for v in values):
        mean = float(np.mean(values))
        return f"{mean:.4g}", lambda dims: mean
    names = sorted(set.intersection(*(set(d) for d in dims)))
    for text, formula in expressions(names):
        if all(
            math.isclose(formula(d), v, rel_tol=1e-5) for d, v in zip(dims, values, strict=True)
        ):
            return text, formula
    if len(values) >= 3:  # two numbers fit too many a product
        return constant_times_power(values, dims, names)
    return None


def without_name(
    values: Sequence[float], dims: Sequence[Dims]
) -> tuple[str, Callable[[Dims], float]]:
    """The numbers themselves, where each size has one of its own: ``int(√d_k)``, say.

    >>> without_name([0.5, 0.25, 0.5], [{"d": 7}, {"d": 20}, {"d": 7}])[0]
    'a different number for every size (0.5, 0.25)'
    """
    found = {tuple(sorted(d.items())): v for d, v in zip(dims, values, strict=True)}
    few = ", ".join(dict.fromkeys(f"{v:.4g}" for v in values[:4]))
    return f"a different number for every size ({few})", lambda d: found[tuple(sorted(d.items()))]


def constant_times_power(
    values: Sequence[float], dims: Sequence[Dims], names: Sequence[str]
) -> tuple[str, Callable[[Dims], float]] | None:
    """A number of the learner's own choice times a power of one dimension.

    >>> dims = [{"d_k": 9}, {"d_k": 25}, {"d_k": 49}]
    >>> constant_times_power([0.1, 0.06, 0.3 / 7], dims, ["d_k"])[0]
    '0.3/√d_k'
    """
    for name in names:
        for power in (-0.5, 0.5, -1.0, 1.0, -0.25, 0.25):
            constants = [v / d[name] ** power for v, d in zip(values, dims, strict=True)]
            same = all(math.isclose(c, constants[0], rel_tol=1e-5) for c in constants)
            if same and len({d[name] for d in dims}) >= 3:
                return written(constants[0], {name: power}), _product(constants[0], {name: power})
    return None


def expressions(names: Sequence[str]) -> Iterator[tuple[str, Callable[[Dims], float]]]:
    """Expressions in the dimensions, simpler first: powers, halves, doubles, products of two."""
    powers = (-0.5, 0.5, -1.0, 1.0, -0.25, 0.25, -1.5, 1.5, -2.0, 2.0)
    for factor in (1.0, -1.0, 0.5, 2.0, -0.5, -2.0, math.log2(math.e), math.log(2)):
        for name in names:
            for power in powers:
                yield written(factor, {name: power}), _product(factor, {name: power})
    for factor in (1.0, -1.0):
        for a, b in permutations(names, 2):
            for p in powers[:4]:
                for q in powers[:4]:
                    if (a, p) < (b, q) or p != q:
                        yield written(factor, {a: p, b: q}), _product(factor, {a: p, b: q})
    for a, b in permutations(names, 2):
        yield f"{a} - {b}", _difference(a, b)


def _difference(a: str, b: str) -> Callable[[Dims], float]:
    return lambda dims: float(dims[a] - dims[b])


def _product(factor: float, powers: Mapping[str, float]) -> Callable[[Dims], float]:
    return lambda dims: factor * math.prod(dims[name] ** power for name, power in powers.items())


def written(factor: float, powers: Mapping[str, float]) -> str:
    """The product in the usual notation.

    >>> written(0.5, {"d_k": 1.0}), written(1.0, {"d_k": -0.5, "L": -0.5})
    ('d_k/2', '1/(√d_k·√L)')
    """
    above = [_power(name, p) for name, p in powers.items() if p > 0]
    below = [_power(name, -p) for name, p in powers.items() if p < 0]
    size = abs(factor)
    if size == 0.5:
        below.insert(0, "2") if below else below.append("2")
    elif size != 1.0:
        above.insert(
            0, {2.0: "2", math.log2(math.e): "log₂e", math.log(2): "ln 2"}.get(size, f"{size:.4g}")
        )
    top = "·".join(above) or "1"
    bottom = "·".join(below)
    sign = "-" if factor < 0 else ""
    return f"{sign}{top}" + (f"/({bottom})" if len(below) > 1 else f"/{bottom}" if below else "")


def _power(name: str, power: float) -> str:
    return {0.25: f"{name}^¼", 0.5: f"√{name}", 1.0: name, 1.5: f"{name}^(3/2)", 2.0: f"{name}²"}[
        power
    ]
