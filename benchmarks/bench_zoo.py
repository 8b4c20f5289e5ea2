"""The programs of the zoo: densities, NUTS and EM against sums over all states, one table.

    python benchmarks/bench_zoo.py [NAME …]

"off by" compares log densities with latents summed out, in float64, relative to their size. NUTS
takes 10 steps and 10 draws of what is left. EM takes three steps from the same parameters: its
first loss is minus that density and no loss rises; or it is refused in the words that the program
names. Seconds are those of the processor for each, compiling counted.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

import jax
import numpy as np
import numpyro
from every_state import density, somewhere, total
from jax import random
from numpyro.infer import MCMC, NUTS
from zoo_programs import ZOO, Program, with_counts

from latentbits import EM, ProgramError, marginal


def off_by(found: float, wanted: float) -> float:
    return abs(float(found) - wanted) / max(1.0, abs(wanted))


def density_off(entry: Program, params: dict, wanted: float) -> str:
    return f"{off_by(density(with_counts(entry), entry.args, params), wanted):.0e}"


def nuts(entry: Program, params: dict, wanted: float) -> str:
    del wanted
    if not params:
        return "no parameters"
    kernel = NUTS(marginal(with_counts(entry)))
    mcmc = MCMC(kernel, num_warmup=10, num_samples=10, progress_bar=False)
    mcmc.run(random.key(0), *entry.args, extra_fields=("potential_energy",))
    finite = np.isfinite(mcmc.get_extra_fields()["potential_energy"]).all()
    return "runs" if finite and set(mcmc.get_samples()) >= set(params) else "not finite"


def em(entry: Program, params: dict, wanted: float) -> str:
    method = EM(with_counts(entry), prior=True, search=None)
    try:
        losses = method.run(random.key(0), 3, *entry.args, init_params=params).losses
    except ProgramError as refusal:
        named = entry.em and re.search(entry.em, str(refusal))
        return "refused" if named else f"refused in other words: {refusal}"
    if entry.em:
        return f"not refused, though {entry.em!r} says so"
    off, rises = off_by(-losses[0], wanted), np.diff(losses).max() > 1e-6 * abs(losses[0])
    return f"{off:.0e}" + (" rises" if rises else "")


def measured(column: Callable, *args: object) -> tuple[str, float]:
    """What a column says, and the processor seconds it takes."""
    began = time.process_time()
    try:
        said = column(*args)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return said, time.process_time() - began


def main() -> None:
    numpyro.enable_x64()
    print("| program | source | off by | NUTS | EM | s: density | NUTS | EM |\n|" + "---|" * 8)
    for name in sys.argv[1:] or ZOO:
        entry = ZOO[name]
        params, latents = somewhere(entry.program, entry.args, entry.most)
        wanted = total(with_counts(entry), entry.args, params, latents)
        cells = [measured(x, entry, params, wanted) for x in (density_off, nuts, em)]
        said, taken = zip(*cells, strict=True)
        print("|", " | ".join([name, entry.source, *said, *(f"{x:.1f}" for x in taken)]), "|",
              flush=True)  # fmt: skip
        jax.clear_caches()


if __name__ == "__main__":
    main()
