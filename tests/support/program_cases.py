"""One row of ``CASES`` is one program at one size, with the oracle's function.

The examples are random and asymmetric: a symmetric one cannot show a sign error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
import oracle

NUM_DATA, NUM_FEATURES, NUM_CANDIDATES = 4, 5, 3


class Case(NamedTuple):
    """A program at one size. ``latents`` and ``data`` draw with any leading shape before (N, ...).

    ``simplex`` names parameters whose derivative only means something along the simplex,
    ``continuous`` latents that have one; ``relative_step`` is for parameters close to a pole.
    """

    program: str
    log_joint: Callable
    parameters: Callable[[np.random.Generator], dict]
    latents: Callable[[np.random.Generator, tuple], dict]
    data: Callable[[np.random.Generator, tuple], np.ndarray]
    arguments: dict[str, Any]
    options: dict[str, Any]
    simplex: tuple = ()
    continuous: tuple = ()
    observed: tuple = ("observed",)
    relative_step: bool = False


def bits(rng, shape, probability=0.5):
    return (rng.random(shape) < probability).astype(np.float64)


def binary_data(rng, shape):
    return bits(rng, (*shape, NUM_FEATURES), [0.2, 0.8, 0.5, 0.4, 0.7])


def real_data(rng, shape):
    return rng.normal(0.4, 2.0, (*shape, NUM_FEATURES))


def sparse_coding(num_causes, scale):
    return Case(
        "binary_sparse_coding",
        oracle.log_joint_binary_sparse_coding,
        lambda rng: {
            "weights": rng.normal(0.3, scale, (num_causes, NUM_FEATURES)),
            "noise": rng.uniform(0.5, 1.5),
            "sparsity": rng.uniform(0.1, 0.4),
        },
        lambda rng, shape: {"causes": bits(rng, (*shape, num_causes), 0.4)},
        real_data,
        {"num_causes": num_causes},
        {},
    )


def maximal_causes(num_causes, scale):
    option = {"superposition": "max"}
    case = sparse_coding(num_causes, scale)
    return case._replace(arguments={**case.arguments, **option}, options=option)


def strong_causes(num_causes, scale, laplace):
    case = sparse_coding(num_causes, scale)
    other = {"spike": False, "slab": dist.Laplace(0.0, 1.0)} if laplace else {}

    def parameters(rng):
        params = case.parameters(rng)
        return {x: v for x, v in params.items() if not (laplace and x == "sparsity")}

    def latents(rng, shape):
        strengths = {"strengths": rng.normal(0.2, 1.5, (*shape, num_causes))}
        return strengths | ({} if laplace else case.latents(rng, shape))

    return case._replace(
        program="sparse_coding", log_joint=oracle.log_joint_sparse_coding, parameters=parameters,
        latents=latents, arguments={**case.arguments, **other}, options={"laplace": laplace},
        continuous=("strengths",),
    )  # fmt: skip


def factor_program(program, log_joint, num_factors, scale, arguments, options):
    return Case(
        program,
        log_joint,
        lambda rng: {
            "weights": rng.normal(0.2, scale, (num_factors, NUM_FEATURES)),
            "bias": rng.normal(-0.4, scale, NUM_FEATURES),
        },
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        binary_data,
        {"num_factors": num_factors, **arguments},
        options,
        continuous=("factors",),
    )


def latent_trait(num_factors, scale):
    log_joint = oracle.log_joint_latent_trait
    return factor_program("latent_trait", log_joint, num_factors, scale, {}, {})


def guessing(num_factors, scale):
    case = latent_trait(num_factors, scale)
    return case._replace(
        parameters=lambda rng: {
            **case.parameters(rng),
            "guessing": rng.uniform(0.1, 0.4, NUM_FEATURES),
        },
        arguments={**case.arguments, "guessing": True},
    )


def clipped_gaussian(num_factors, scale, **noise):
    log_joint = oracle.log_joint_clipped_gaussian
    return factor_program("clipped_gaussian", log_joint, num_factors, scale, noise, noise)


def combination_machine(program, log_joint, data, num_causes, scale):
    return Case(
        program,
        log_joint,
        lambda rng: {
            "weights": rng.normal(0.1, scale, (num_causes, NUM_FEATURES)),
            "bias": rng.normal(-0.5, scale, num_causes),
        },
        lambda rng, shape: {"causes": bits(rng, (*shape, num_causes), 0.6)},
        data,
        {"num_causes": num_causes},
        {},
    )


def binary_machine(num_causes, scale):
    log_joint = oracle.log_joint_combination_machine
    return combination_machine("combination_machine", log_joint, binary_data, num_causes, scale)


def real_machine(num_causes, scale):
    log_joint = oracle.log_joint_real_combination_machine
    return combination_machine("real_combination_machine", log_joint, real_data, num_causes, scale)


def bernoulli_mixture(num_components):
    return Case(
        "bernoulli_mixture",
        oracle.log_joint_bernoulli_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 2.0)),
            "probs": rng.uniform(0.05, 0.95, (num_components, NUM_FEATURES)),
        },
        lambda rng, shape: {"component": rng.integers(0, num_components, shape)},
        binary_data,
        {"num_components": num_components},
        {},
        simplex=("mixing",),
    )


def noisy_or_network(layers, leak):
    sizes = (NUM_FEATURES, *layers)

    def parameters(rng):
        sites = {f"leak_{level}": rng.uniform(*leak, size) for level, size in enumerate(sizes)}
        for level in range(1, len(sizes)):
            sites[f"weights_{level}"] = rng.gamma(1.0, 1.0, (sizes[level], sizes[level - 1]))
        return sites

    def latents(rng, shape):
        return {
            f"layer_{level}": bits(rng, (*shape, sizes[level]), 0.4)
            for level in range(1, len(sizes))
        }

    return Case(
        "noisy_or_network",
        oracle.log_joint_noisy_or_network,
        parameters,
        latents,
        binary_data,
        {"layers": layers},
        {},
    )


def mixed_trait(kinds, num_factors, observed):
    num_reals = kinds.count("real")
    num_predictors = sum(kind - 1 if isinstance(kind, int) else 1 for kind in kinds)

    def parameters(rng):
        sites = {
            "weights": rng.normal(0.2, 1.2, (num_factors, num_predictors)),
            "bias": rng.normal(-0.4, 1.0, num_predictors),
        }
        return {**sites, "noise": rng.uniform(0.5, 1.5, num_reals)} if num_reals else sites

    def data(rng, shape):
        draws = {"real": lambda: rng.normal(0.4, 2.0, shape), "binary": lambda: bits(rng, shape)}
        columns = [
            draws[kind]() if kind in draws else rng.integers(0, kind, shape).astype(float)
            for kind in kinds
        ]
        return np.stack(columns, axis=-1)

    return Case(
        "mixed_trait",
        oracle.log_joint_mixed_trait,
        parameters,
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        data,
        {"kinds": kinds, "num_factors": num_factors},
        {"kinds": kinds},
        continuous=("factors",),
        observed=observed,
    )


def graded_trait(levels, num_factors):
    numbers = sorted(set(levels))
    return Case(
        "graded_trait",
        oracle.log_joint_graded_trait,
        lambda rng: {
            "weights": rng.normal(0.2, 1.2, (num_factors, len(levels))),
            **{
                f"cutpoints_{k}": np.sort(rng.normal(0.3, 1.5, (levels.count(k), k - 1)))
                for k in numbers
            },
        },
        lambda rng, shape: {"factors": rng.normal(0.0, 1.0, (*shape, num_factors))},
        lambda rng, shape: rng.integers(0, levels, (*shape, len(levels))).astype(float),
        {"levels": levels, "num_factors": num_factors},
        {"levels": levels},
        continuous=("factors",),
        observed=tuple(f"observed_{k}" for k in numbers),
    )


def categorical_mixture(levels, num_components):
    numbers = sorted(set(levels))
    probs = {f"probs_{k}": (num_components, levels.count(k)) for k in numbers}
    return Case(
        "categorical_mixture",
        oracle.log_joint_categorical_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 3.0)),
            **{name: rng.dirichlet(np.ones(int(name[6:])), shape) for name, shape in probs.items()},
        },
        lambda rng, shape: {"component": rng.integers(0, num_components, shape)},
        lambda rng, shape: rng.integers(0, levels, (*shape, len(levels))).astype(float),
        {"levels": levels, "num_components": num_components},
        {"levels": levels},
        simplex=("mixing", *probs),
        observed=tuple(f"observed_{k}" for k in numbers),
    )


def trait_mixture(num_components, num_factors):
    sizes = {"num_components": num_components, "num_factors": num_factors}
    return Case(
        "trait_mixture",
        oracle.log_joint_trait_mixture,
        lambda rng: {
            "mixing": rng.dirichlet(np.full(num_components, 3.0)),
            "weights": rng.normal(0.2, 1.2, (num_components, num_factors, NUM_FEATURES)),
            "bias": rng.normal(-0.4, 1.2, (num_components, NUM_FEATURES)),
        },
        lambda rng, shape: {
            "component": rng.integers(0, num_components, shape),
            "factors": rng.normal(0.0, 1.0, (*shape, num_factors)),
        },
        binary_data,
        sizes,
        {},
        simplex=("mixing",),
        continuous=("factors",),
    )


CASES = {
    "sparse_coding": sparse_coding(3, 2.0),
    "sparse_coding_one_cause": sparse_coding(1, 2.0),
    "maximal_causes": maximal_causes(3, 2.0),
    "spike_and_slab": strong_causes(3, 2.0, laplace=False),
    "laplace": strong_causes(2, 2.0, laplace=True),
    "latent_trait": latent_trait(2, 1.2),
    "latent_trait_guessing": guessing(1, 1.2),
    "latent_trait_saturated": latent_trait(3, 40.0),
    # Columns of one kind apart from each other, larger numbers of levels before smaller ones.
    "mixed_trait": mixed_trait(
        ("real", 4, "binary", 3, "binary", "real", 4),
        2,
        ("observed_real", "observed_binary", "observed_3", "observed_4"),
    ),
    "trait_mixture": trait_mixture(3, 2),
    "graded_trait": graded_trait((4, 2, 3, 4), 2),
    "categorical_mixture": categorical_mixture((4, 2, 3, 4), 3),
    "clipped_gaussian": clipped_gaussian(2, 1.2),
    # The small deviations reach far into the tails, where Φ itself is zero in float32.
    "clipped_gaussian_noise_by_column": clipped_gaussian(
        3, 1.5, noise=np.array([0.6, 0.08, 0.9, 2.0, 0.15])
    ),
    "combination_machine": binary_machine(3, 0.8),
    # log cosh of these inputs is fine, their cosh is over the largest float32.
    "combination_machine_strong": binary_machine(3, 60.0),
    "real_combination_machine": real_machine(3, 0.8),
    "bernoulli_mixture": bernoulli_mixture(3),
    "bernoulli_product": Case(
        "bernoulli_product",
        oracle.log_joint_bernoulli_product,
        lambda rng: {"probs": rng.uniform(0.05, 0.95, NUM_FEATURES)},
        lambda rng, shape: {},  # noqa: ARG005
        binary_data,
        {},
        {},
    ),
    "noisy_or": noisy_or_network((3, 2), (0.1, 0.8)),
    "noisy_or_one_layer": noisy_or_network((3,), (0.1, 0.8)),
    "noisy_or_three_layers": noisy_or_network((4, 3, 2), (0.1, 0.8)),
    # 1 − exp(−u) in float32 has no digits left at u = 1e-7, −expm1(−u) has all.
    "noisy_or_faint": noisy_or_network((3,), (1e-7, 1e-5))._replace(relative_step=True),
}
