"""Gibbs sampling of discrete latents, as a kernel for NumPyro's MCMC."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import identity, is_prng_key

from ...reading.anatomy import Anatomy, ProgramError
from ...reading.arguments import rows_of
from ...rows.chunks import compiled
from ...types import Arguments, Params
from .flips import BitProgram, Rules, Settled, open_bits, settle
from .latents import LatentProgram, open_latents


class LatentGibbsState(NamedTuple):
    """What the next sweep needs, and what a diagnosis does."""

    z: dict[str, Array]  # the latents by site
    largest_flip: Array  # () the largest probability to change that a bit met in the last sweep
    log_joint: Array  # () log p(y, s) of all rows: a scalar that knows no labels
    rng_key: Array


class LatentGibbs(MCMCKernel):
    """Gibbs sampling of all discrete latents of a program; all rows and chains go at once.

    By itself it samples the latents given fixed parameters; with another kernel for the parameters
    it is a block of ``numpyro.infer.Gibbs`` (NumPyro 0.22), or the ``gibbs_fn`` of ``HMCGibbs``.
    The bits of a row are visited in order. A noisy-OR network is recognised by its form, whatever
    its sites are called, and takes equations (6) and (7) of Lewicki & Sejnowski (1996), where a
    flip costs its children only; every other program takes two readings per bit.

    Categories, latents that all rows share (the indicators of a spike and slab), those of several
    plates and those beside continuous ones take one reading per value: see
    `inference.methods.gibbs.latents`. `BinaryGibbs` is its former name.

    :param model: any program with discrete latents. Parameters must be fixed
        (``numpyro.handlers.condition``) or left to another block.
    :param sweeps: through all bits, between two draws.
    :param annealing: sweeps before the chain starts, over which the likelihood's power rises from
        0 to 1: Gibbs sticks, and so does where it started.
    :param restarts: chains tried for each row before the start; the best by log joint begins.
    :param by_network: False for two readings per bit, whatever the program is.

    >>> from numpyro.handlers import condition
    >>> from numpyro.infer import MCMC
    >>> from latentbits.models import noisy_or_network
    >>> params = {"leak_0": jnp.full(3, 0.1), "leak_1": jnp.full(2, 0.5),
    ...           "weights_1": jnp.array([[2.0, 2.0, 0.0], [0.0, 2.0, 2.0]])}
    >>> kernel = LatentGibbs(condition(noisy_or_network, data=params))
    >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=20, progress_bar=False)
    >>> mcmc.run(random.key(0), jnp.array([[1, 1, 0], [0, 0, 0]]), layers=(2,))
    >>> mcmc.get_samples()["layer_1"].shape
    (20, 2, 2)
    """

    sample_field = "z"

    def __init__(
        self,
        model: Callable,
        *,
        sweeps: int = 1,
        annealing: int = 0,
        restarts: int = 1,
        by_network: bool = True,
        plate: str | None = None,
    ):
        if sweeps < 1:
            raise ValueError(f"sweeps must be at least 1, found {sweeps}")
        self._model, self.sweeps = model, sweeps
        self.rules = Rules(annealing=annealing, restarts=restarts)
        self.rules.check()
        self.by_network, self.plate = by_network, plate

    @classmethod
    def admits(cls, anatomy: Anatomy) -> str | None:
        """None if it applies to a program of this anatomy, else the reason why not."""
        if not anatomy.latents:
            return "no latent in the data plate"
        if any(x.num_values is not None for x in anatomy.latents):
            return None  # continuous ones are left to another block
        first = anatomy.latents[0]
        counts = first.odd is not None and "counts" in first.odd
        return f"{first.name}: {first.odd}" if counts else f"{first.name} is continuous"

    @property
    def model(self) -> Callable:
        return self._model

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Params | None,
        model_args: tuple,
        model_kwargs: dict[str, Any] | None,
    ) -> LatentGibbsState:
        del num_warmup
        program = self._open(model_args, model_kwargs)
        if program.anatomy.parameters:
            raise ProgramError(
                f"LatentGibbs samples the latents {list(program.anatomy.names)} and leaves the "
                f"parameters {list(program.anatomy.parameters)} alone: fix them with "
                "numpyro.handlers.condition, or give them a block of numpyro.infer.Gibbs"
            )
        unknown = set(init_params or {}) - set(program.anatomy.names)
        if unknown:
            raise ValueError(
                f"init_params has {sorted(unknown)}: the latents are {list(program.anatomy.names)}"
            )
        arguments = (model_args, model_kwargs or {})
        if is_prng_key(rng_key):
            return self._begin(program, arguments, rng_key, init_params)

        # Vectorized chains, in one piece: one by one their operations compile for many seconds.
        def begin(arguments: Arguments, keys: Array, places: Params | None) -> LatentGibbsState:
            each = lambda key, z: self._begin(program, arguments, key, z)  # noqa: E731
            return jax.vmap(each)(keys, places)

        if isinstance(program, LatentProgram):
            return jax.jit(partial(begin, arguments))(rng_key, init_params)
        rows = rows_of(program.anatomy, *arguments)
        whole = lambda rows, *start: begin(rows.join(rows.leaves), *start)  # noqa: E731
        return compiled(whole, rows)(rows.leaves, rng_key, init_params)

    def _begin(
        self,
        program: BitProgram | LatentProgram,
        arguments: Arguments,
        rng_key: Array,
        init_params: Params | None,
    ) -> LatentGibbsState:
        key, key_prior, key_start = random.split(rng_key, 3)
        bits = program.prior_draw(key_prior, {}, arguments)
        bits = program.pack({**program.unpack(bits), **(init_params or {})})
        draw, score = program.read({}, arguments)
        if self.rules.annealing or self.rules.restarts > 1:
            program.check_rows("annealing and restarts compare rows")
            bits = settle(draw, score, key_start, bits, self.rules).bits
        one = jnp.ones(())
        return LatentGibbsState(program.unpack(bits), one, score(bits, 1.0).sum(), key)

    def sample(
        self, state: LatentGibbsState, model_args: tuple, model_kwargs: dict[str, Any] | None
    ) -> LatentGibbsState:
        if not is_prng_key(state.rng_key):
            return jax.vmap(lambda s: self.sample(s, model_args, model_kwargs))(state)
        program = self._open(model_args, model_kwargs)
        draw, score = program.read({}, (model_args, model_kwargs or {}))
        key, key_sweeps = random.split(state.rng_key)

        def again(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            bits, flip = draw(random.fold_in(key_sweeps, i), carry[0], 1.0)
            return bits, flip.max()

        start = (program.pack(state.z), jnp.zeros_like(state.largest_flip))
        bits, flip = jax.lax.fori_loop(0, self.sweeps, again, start)
        return LatentGibbsState(program.unpack(bits), flip, score(bits, 1.0).sum(), key)

    def settle(
        self,
        rng_key: Array,
        params: Params,
        *args: Any,
        init_params: Params | None = None,
        max_sweeps: int = 15,
        stop_below: float = 0.05,
        **kwargs: Any,
    ) -> Settled:
        """Sample as an E-step does, by the paper's rule: states that are not likely to change.

        Each row stops when no bit had a larger probability to change than `stop_below`, or after
        `max_sweeps` sweeps (Lewicki & Sejnowski 1996, §5).

        :param init_params: where the latents start, by site; all off by default.
        """
        program = self._open(args, kwargs)
        program.check_rows("settle stops row by row")
        assert isinstance(program, BitProgram)
        bits = jnp.zeros((program.anatomy.num_data, program.anatomy.num_bits), jnp.int32)
        bits = program.pack({**program.unpack(bits), **(init_params or {})})
        draw, score = program.read(params, (args, kwargs))
        rules = self.rules._replace(max_sweeps=max_sweeps, stop_below=stop_below)
        rules.check()
        return settle(draw, score, rng_key, bits, rules)

    def gibbs_fn(self, *args: Any, **kwargs: Any) -> Callable[..., dict[str, Array]]:
        """The update that ``numpyro.infer.HMCGibbs`` asks for, for a program on these data.

        ``HMCGibbs(NUTS(model), kernel.gibbs_fn(data), gibbs_sites=[...])`` samples parameters and
        latents in turn.
        """
        program = self._open(args, kwargs)

        def update(rng_key: Array, gibbs_sites: Params, hmc_sites: Params) -> dict[str, Array]:
            params = {name: hmc_sites[name] for name in program.anatomy.parameters}
            draw, _ = program.read(params, (args, kwargs))
            bits = program.pack(gibbs_sites)
            for i in range(self.sweeps):
                bits, _flip = draw(random.fold_in(rng_key, i), bits, 1.0)
            new = program.unpack(bits)
            return {name: value.astype(gibbs_sites[name].dtype) for name, value in new.items()}

        return update

    def refresh(self, state: LatentGibbsState, model_args: tuple, model_kwargs: Any) -> Any:
        """The log joint under what the other blocks have changed."""
        if not is_prng_key(state.rng_key):
            return jax.vmap(lambda s: self.refresh(s, model_args, model_kwargs))(state)
        program = self._open(model_args, model_kwargs)
        _, score = program.read({}, (model_args, model_kwargs or {}))
        return state._replace(log_joint=score(program.pack(state.z), 1.0).sum())

    def wrap_model(self, wrapper: Callable) -> LatentGibbs:
        """A copy for the wrapped model, as ``numpyro.infer.Gibbs`` wants it."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        return kernel

    def get_constrain_fn(self, model_args: tuple, model_kwargs: Any) -> Callable:
        """Bits need no transform."""
        del model_args, model_kwargs
        return identity

    def get_diagnostics_str(self, state: LatentGibbsState) -> str:
        return f"largest flip probability {float(jnp.max(state.largest_flip)):.2f}"

    def _open(self, args: tuple, kwargs: dict[str, Any] | None) -> BitProgram | LatentProgram:
        other = open_latents(self._model, args, kwargs or {}, self.plate)
        if other is not None:
            return other
        return open_bits(
            self._model, args, kwargs or {}, plate=self.plate, by_network=self.by_network
        )
