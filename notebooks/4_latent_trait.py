# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Latent trait: a map of binary data
#
# Tipping, *Probabilistic visualisation of high-dimensional binary data*, NIPS 1998.
#
# Each row of a table has a place on a plane that nobody saw, and each column is a logistic
# regression on that place. To draw a map is to infer the places. The integral over them has no
# closed form; the paper replaces every logistic function by a quadratic bound, after which all is
# Gaussian. Here the bound is one reading of the program, and its rivals are three others.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp
from latentbits.inference.reading.bounds import curvature
from latentbits.inference.reading.local import hessians, linear_part, row_function
from latentbits.inference.studies.arviz import import_arviz
from latentbits.inference.studies.notebook import (
    beside,
    contest,
    reproduce,
    said,
    scores,
    show,
    source,
)
from latentbits.inference.studies.output import table_lines
from latentbits.inference.studies.papers import latent_trait as study
from latentbits.inference.studies.report.general_figures import draw_paths
from latentbits.models import latent_trait
from latentbits.models.data import digits, prototypes
from numpyro.handlers import seed, substitute, trace

from latentbits import BoundEM, QuadratureEM, inspect, quadratic_bound, states

small = "LATENTBITS_SMALL" in os.environ  # for a test: everything runs, nothing is learned

source(latent_trait)

# %% [markdown]
# In symbols, for a row $\mathbf t$ of $d$ bits,
#
# $$p(\mathbf t) = \int \prod_{i=1}^d P(t_i \mid \mathbf x)\; \mathcal N(\mathbf x; 0, I)\,
# d\mathbf x \quad (1), \qquad
# P(t_i = 1 \mid \mathbf x) = \sigma(\mathbf w_i^T \mathbf x + b_i) \quad (2).$$
#
# The paper's first data are 200 noisy copies of each of three random patterns of 16 bits. One fit
# to look at; the rest of the notebook asks how good it is.

# %%
data = prototypes(random.key(0), flip=0.15).data
em = BoundEM(latent_trait)
fit = em.run(random.key(1), 10 if small else 200, data, tolerance=1e-6)
assert (jnp.diff(fit.losses) < 1e-3 * len(data)).all()  # the bound never falls, but for rounding
print(
    f"{len(data)} rows: {fit.losses[-1] / len(data):.3f} nats a row after {len(fit.losses)} steps"
)

# %% [markdown]
# ## Read at many places: equation (3)
#
# Give the site `factors` $L$ values at once, on a new leading axis, and the program returns
# $\log P(\mathbf t_n \mid \mathbf x_l)$ for all rows and places. With places drawn from the prior
# the mean over them is the paper's Monte-Carlo likelihood,
#
# $$\mathcal L \approx \sum_n \ln \Big\{ \frac1L \sum_{l=1}^L P(\mathbf t_n \mid \mathbf x_l)
# \Big\} \quad (3).$$
#
# `MonteCarloEM` maximises it. `QuadratureEM` moves a Gauss–Hermite grid to each row's mode instead:
# in two dimensions that is the likelihood to four digits, the yardstick for everyone here.


# %%
@jax.jit
def log_mean(places):  # (L, 2) -> (num_data,)
    program = substitute(states(latent_trait, {"factors": places[:, None]}), data=fit.params)
    observed = trace(seed(program, 0)).get_trace(data)["observed"]
    return logsumexp(observed["fn"].log_prob(data), axis=0) - jnp.log(len(places))


exact = QuadratureEM(latent_trait, num_nodes=15).evidence(fit.params, data).mean()
for number in (500, 50_000 if not small else 500):
    value = log_mean(random.normal(random.key(2), (number, 2))).mean()
    print(f"{number:6d} draws: {value:.3f} nats a row")
print(f"  quadrature: {exact:.3f}")

# %% [markdown]
# ## Read through a bound: equations (5) to (7)
#
# With $A_i = (2 t_i - 1)(\mathbf w_i^T \mathbf x + b_i)$ and
# $\lambda(\xi) = \{\tfrac12 - \sigma(\xi)\} / 2\xi$, Jaakkola and Jordan's bound is
#
# $$\tilde P(t_i \mid \mathbf x, \xi_i) = \sigma(\xi_i) \exp\big\{ (A_i - \xi_i)/2 +
# \lambda(\xi_i)(A_i^2 - \xi_i^2) \big\} \le P(t_i \mid \mathbf x) \quad (5).$$
#
# `quadratic_bound` puts it in the place of the observed site, and touches nothing else. The log
# joint is then quadratic in $\mathbf x$, so its slope and curvature at the origin, by automatic
# differentiation, are the whole posterior. The paper finds the same by hand:
#
# $$\mathbf C_n = \Big[ I - 2 \sum_i \lambda(\xi_{in}) \mathbf w_i \mathbf w_i^T \Big]^{-1} (6),
# \qquad \boldsymbol\mu_n = \mathbf C_n \sum_i \big[ t_{in} - \tfrac12 + 2 \lambda(\xi_{in}) b_i
# \big] \mathbf w_i \quad (7).$$

# %%
xi = random.uniform(random.key(3), data.shape, minval=0.1, maxval=3.0)  # any: (6), (7) hold for all
weights, bias = fit.params["weights"], fit.params["bias"]


@jax.jit
def read_off():
    bounded = quadratic_bound(latent_trait, "observed", xi)
    joint = row_function(bounded, inspect(latent_trait, (data,), {}), fit.params, ((data,), {}))
    origin = jnp.zeros((len(data), 2))
    covariance = jnp.linalg.inv(-hessians(joint, origin))
    return covariance, jnp.einsum("nij,nj->ni", covariance, linear_part(joint, origin)[1])


@jax.jit
def by_hand():
    bend = curvature(xi)  # the paper's λ(ξ)
    precision = jnp.eye(2) - 2 * jnp.einsum("nd,qd,rd->nqr", bend, weights, weights)
    covariance = jnp.linalg.inv(precision)  # (6)
    slope = (data - 0.5 + 2 * bend * bias) @ weights.T
    return covariance, jnp.einsum("nij,nj->ni", covariance, slope)  # (7)


for name, ours, paper in zip(("C", "μ"), read_off(), by_hand(), strict=True):
    print(f"{name}: largest difference {jnp.abs(ours - paper).max():.0e}")

# %% [markdown]
# What is left of the algorithm is short. $\xi_{in}^2 = \langle (\mathbf w_i^T \mathbf x_n + b_i)^2
# \rangle$ (8) makes the bound touch where the posterior is, and a weighted least-squares problem
# for each column (11) raises it in the parameters. `BoundEM` repeats that; for a program of your
# own with Gaussian latents it reads (6) and (7) off as above.
#
# ## Figure 1: two maps
#
# Posterior means $\boldsymbol\mu_n$, larger where rows coincide. With more noise the clusters
# overlap; the lines on which a bit is as likely 1 as 0 still part them.

# %%
first = reproduce("trait-clusters", flips=[0.15] if small else [0.05, 0.15])
show(first.figure)

# %% [markdown]
# ## Figure 2: handwritten twos
#
# The paper had 1000 images; these are the 500 twos of an MNIST subset. Left the map, right
# $P(\mathbf t \mid \mathbf x)$ at the four marked places: one way of writing a two each.

# %%
second = first if small else reproduce("trait-digits")
show(second.figure)

# %% [markdown]
# ## Table 1, figures 3 and 4: the bound against Monte Carlo
#
# Same start, same stopping rule; the error is $-\log p$ a row, by quadrature. Seconds are of the
# processor, compilation left out; the paper's are of 1998. Its data are not ours (the patterns are
# random, the twos another set), so compare within a column, not across.

# %%
sets = {}
if not small:
    twos = np.asarray(digits([2]).data[:250])
    sets["synthetic"] = np.asarray(prototypes(random.key(4)).data)
    sets["digits"] = twos[:, twos.min(0) < twos.max(0)]
words = {"bound": "bound", "monte_carlo": "Monte Carlo"}
found = {name: study.compare(x, random.key(5), 500, [*words]) for name, x in sets.items()}
paper = {
    "synthetic, bound: seconds": 7.8, "synthetic, bound: error": 5.14,
    "synthetic, Monte Carlo: seconds": 331.1, "synthetic, Monte Carlo: error": 4.93,
    "digits, bound: seconds": 25.6, "digits, bound: error": 30.23,
    "digits, Monte Carlo: seconds": 1204.5, "digits, Monte Carlo: error": 30.19,
}  # fmt: skip
here = {
    f"{name}, {word}: {what}": numbers[method][key]
    for name, (numbers, _) in found.items()
    for method, word in words.items()
    for key, what in (("seconds", "seconds"), ("nll", "error"))
}
beside(paper=paper, here=here)

# %% [markdown]
# The bound is the faster by far, as the paper says, and by less than in the paper: here the draws
# of `MonteCarloEM` are shared by all rows, so that its likelihoods are one matrix product. And it
# pays: on the synthetic data it ends where the true likelihood is lower.
#
# Above the course of each run (figure 3), below the posterior of one row (figure 4): as it is, and
# as the bound has it.

# %%
for name, (numbers, _) in found.items():
    rival, away = numbers["speedup"], numbers["divergence"]
    print(f"{name}: {rival:.0f} times as fast; KL(q ‖ p) a row: {away['mean']:.2f} nats, "
          f"at most {away['largest']:.2f}")  # fmt: skip
show(study.accuracy_figure, {name: kept for name, (_, kept) in found.items()})

# %% [markdown]
# The paper holds that the approximation becomes better with more columns. In the mean over rows it
# does, a little; for the worst row it becomes worse.
#
# ## Bespoke against NUTS and SVI
#
# Generic methods take the program as it is: places and parameters are unknown alike. A quarter of
# the rows is held out, and every method is scored by the same exact likelihood of those.

# %%
methods = ["BoundEM", "QuadratureEM", "NUTS", "SVI mean_field"]
race, draws = contest("latent_trait", methods, small=small)
scores(race)

# %%
said(race)

# %%
show(draw_paths, race)

# %% [markdown]
# NUTS gives what no EM gives by itself, the uncertainty of the parameters. Its draws are in ArviZ's
# form, the marginal likelihood of each row beside them. The biases can be read as they are, for to
# turn the plane does not move them; weights of different chains are brought together first.

# %%
import_arviz().summary(draws["NUTS"], var_names=["probs" if small else "bias"])

# %% [markdown]
# ## What we learned: where the bound breaks
#
# A parabola fits the logarithm of a logistic function near $\pm\xi$ and nowhere else, and the wider
# a posterior is in the logits, the more of it lies elsewhere. Rows drawn from the program with
# larger and larger weights show what that costs: quadrature finds weights of about the true size,
# the bound makes them smaller, down to half.

# %%
broken = first if small else reproduce("trait-strength")
print(*table_lines(broken.numbers), sep="\n")
show(broken.figure)

# %% [markdown]
# So: the bound for speed, for many factors and for a first map; quadrature, which in two dimensions
# is exact, for the likelihood, for weights that are to be read, and for standard errors.
