"""Size and power of the tests for differences between groups, on simulated tables.

    python benchmarks/bench_dif.py [--tables 60]

Two groups of 400 rows, 8 items, abilities that differ by half a deviation. Where nothing differs:
the share of all items with p < 0.05, of the test of the item and of its two parts, and of tables of
which some item is said to differ. Where one item is harder for a group by 0.6 and another has half
its discrimination: how often each of the two is found after correction, and any other item.
"""

import argparse

import jax
import numpy as np

from inference import QuadratureEM
from inference.items.dif import LEVEL, Answers, study_groups
from ppl_models import latent_trait


def table(rng, shift, half):
    group = np.repeat([0, 1], 400)
    ability = rng.normal(size=800) + 0.5 * group
    slopes, difficulty = rng.uniform(1.0, 2.0, 8), rng.normal(size=8) * 0.7
    slope, place = np.tile(slopes, (800, 1)), np.tile(difficulty, (800, 1))
    place[group == 1, 0] += shift
    slope[group == 1, 1] *= half
    probability = 1.0 / (1.0 + np.exp(-slope * (ability[:, None] - place)))
    return (rng.random((800, 8)) < probability) + 0.0, group


def study(rng, shift=0.0, half=1.0):
    data, group = table(rng, shift, half)
    how = {"tolerance": 1e-7, "num_factors": 1}
    fit = QuadratureEM(latent_trait).run(jax.random.key(0), 200, data, **how)
    start = {name: np.asarray(x, float) for name, x in fit.params.items()}
    return study_groups(Answers.of(data, None, (2,) * 8), group, start).items


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=60)
    count = parser.parse_args().tables
    rng = np.random.default_rng(0)
    null = [study(rng) for _ in range(count)]
    for name in ("p_value", "p_uniform", "p_nonuniform"):
        each = np.stack([x[name] for x in null]) < LEVEL
        error = each.mean(1).std(ddof=1) / np.sqrt(count)
        print(f"nothing differs: {name} < {LEVEL} in {each.mean():.3f} ± {error:.3f} of the items")
    some = np.mean([(x["p_adjusted"] < LEVEL).any() for x in null])
    print(f"nothing differs: some item is found in {some:.3f} of {count} tables")
    flagged = np.stack([study(rng, 0.6, 0.5)["p_adjusted"] < LEVEL for _ in range(count)])
    print(f"harder by 0.6: found in {flagged[:, 0].mean():.3f} of {count} tables")
    print(f"half the discrimination: found in {flagged[:, 1].mean():.3f}")
    print(f"another item: {flagged[:, 2:].mean():.3f} of the other six items")


if __name__ == "__main__":
    main()
