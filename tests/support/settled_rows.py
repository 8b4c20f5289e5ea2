"""Rows of a comparison made by hand, with what `settle` adds to them."""

import numpy as np

from inference.comparison.verdict import settle


def row(held_out, bespoke=True, **more):
    return {
        "held_out": held_out, "held_out_error": 0.1, "bespoke": bespoke, "seconds": 9.0,
        "kind": "point", "starts": 4, "starts_near": 4, "starts_behind": 0.0, **more,
    }  # fmt: skip


def settled(scores, paths=None, **rows):
    held_out = {name: np.asarray(values, float) for name, values in scores.items()}
    for name, values in held_out.items():
        rows[name] = {**row(values.mean()), **rows.get(name, {})}
    paths = paths or {x: (np.array([v.mean()]), np.array([1.0])) for x, v in held_out.items()}
    settle(rows, held_out, paths)
    return rows
