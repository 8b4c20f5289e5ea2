# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Items from a test: which questions are good, and for whom?
#
# 1000 candidates answered the five questions of section 6 of the Law School Admission
# Test. **How difficult is each question, does it tell strong candidates from weak ones,
# and how certain is the score of a candidate?**
#
# The counts of the 32 patterns of answers are those of R. D. Bock and M. Lieberman,
# *Fitting a response model for n dichotomously scored items*, Psychometrika 35 (1970).

# %% tags=["parameters"]
from itertools import product

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import random
from latentbits.models import latent_trait
from scipy.stats import chi2

from latentbits import QuadratureEM, log_likelihood, posterior_draws, standard_errors

num_steps, num_draws, every = 500, 1000, 1

counts = [3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15]
counts += [10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298]
patterns = np.array(list(product((0.0, 1.0), repeat=5)))  # 00000 to 11111
answers = np.repeat(patterns, counts, axis=0)[::every]
print(f"{len(answers)} candidates; share of right answers {answers.mean(0).round(3)}")

# %% [markdown]
# ## The model: one ability, two numbers for each question
#
# A candidate of ability $x$ answers question $i$ correctly with probability
#
# $$P(t_i = 1 \mid x) = \sigma(w_i x + b_i), \qquad x \sim \mathcal N(0, 1).$$
#
# The slope $w_i$ is its *discrimination*, and $-b_i / w_i$ the ability at which half of
# the candidates answer correctly, its *difficulty*: the 2PL model. `QuadratureEM`
# maximises the likelihood, the ability integrated out; in one dimension that is exact.
# `standard_errors` come from the curvature at the maximum.

# %%
given = {"num_factors": 1}
em = QuadratureEM(latent_trait)
fit = em.run(random.key(0), num_steps, answers, tolerance=1e-7, **given)
error = standard_errors(latent_trait, fit.params, answers, **given)
slope, bias = fit.params["weights"][0], fit.params["bias"]
published = [0.825, 0.723, 0.890, 0.688, 0.657]  # R's ltm, Rizopoulos 2006
for i in range(5):
    print(
        f"question {i + 1}: discrimination {slope[i]:.3f} ± "
        f"{error['weights'][0, i]:.3f}"
        f" (ltm {published[i]:.3f}), difficulty {-bias[i] / slope[i]:.2f}"
    )
print(f"log likelihood {-fit.losses[-1]:.3f} (ltm -2466.653)")

# %% [markdown]
# ## Is the model good enough, or too good?
#
# With five questions there are 32 patterns, so the expected number of candidates with
# each pattern can be set beside the observed one. If the model holds, $G^2$ follows a
# $\chi^2$ distribution with 32 − 1 − 10 degrees of freedom.
#
# The five slopes look alike. The Rasch model has one slope for all; it is the same
# program with `slope="equal"`. Twice the difference of the log likelihoods tests it.

# %%
chance = np.exp(
    log_likelihood(latent_trait, fit.params, jnp.asarray(patterns), **given).value
)
seen = np.array([(answers == one).all(1).sum() for one in patterns])
some = seen > 0
square = 2 * (seen[some] * np.log(seen[some] / (len(answers) * chance[some]))).sum()
print(f"G² {square:.1f} on 21 degrees of freedom: p {chi2.sf(square, 21):.2f}")
rasch = {"num_factors": 1, "slope": "equal"}
equal = em.run(random.key(0), num_steps, answers, tolerance=1e-7, **rasch)
ratio = 2 * float(equal.losses[-1] - fit.losses[-1])
print(
    f"one slope for all: {ratio:.2f} on 4 degrees of freedom: p {chi2.sf(ratio, 4):.2f}"
)

# %% [markdown]
# Both tests pass: nothing speaks against the 2PL model, and nothing speaks for five
# different slopes. So the number of right answers says all that the test knows of a
# candidate.
#
# ## How certain is all this?
#
# `posterior_draws` goes from the maximum to the posterior of the parameters, and says
# whether its draws can be trusted. `posterior` gives each candidate's ability with its
# own uncertainty.

# %%
draws = posterior_draws(
    latent_trait, equal.params, answers, num_draws=num_draws, **rasch
)
print(draws)
all_slopes = abs(draws.params["weights"].ravel())
low, middle, high = np.quantile(all_slopes, (0.025, 0.5, 0.975))
print(
    f"the slope of all questions: {middle:.2f}, 95 % interval {low:.2f} to {high:.2f}"
)
steps = jnp.tril(jnp.ones((6, 5)), -1)  # 0 to 5 right answers
score = em.posterior(equal.params, steps, **rasch)
sign = float(jnp.sign(equal.params["weights"][0, 0]))
ability = sign * np.asarray(score.mean)[:, 0]
spread = np.sqrt(np.asarray(score.covariance)[:, 0, 0])
for right in range(6):
    print(f"{right} right: ability {ability[right]:5.2f} ± {spread[right]:.2f}")

# %% [markdown]
# ## For whom is the test made?
#
# The information of a question at ability $x$ is $w_i^2 \sigma (1 - \sigma)$. Its sum is
# one over the squared error of an ability that the answers alone determine.

# %%
axis = np.linspace(-4, 4, 200)
curve = 1 / (1 + np.exp(-(np.outer(axis, slope) + np.asarray(bias)) * 1.0))
information = (np.asarray(slope) ** 2 * curve * (1 - curve)).sum(1)
figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for i in range(5):
    panels[0].plot(axis, curve[:, i], label=f"question {i + 1}")
panels[0].legend(frameon=False, fontsize=8)
panels[0].set(xlabel="ability", ylabel="probability of a right answer")
panels[1].plot(axis, information, color="C0")
panels[1].set(xlabel="ability", ylabel="information of the test", ylim=(0, None))
panels[2].errorbar(range(6), ability, yerr=1.96 * spread, fmt="o", color="C0")
panels[2].set(xlabel="right answers", ylabel="ability, 95 % interval")
for panel in panels:
    panel.spines[["top", "right"]].set_visible(False)
print(f"the test informs most at ability {axis[information.argmax()]:.1f}")

# %% [markdown]
# ## To take home
#
# - All five questions are easy, so the test tells weak candidates apart and says little
#   about strong ones. Five questions leave a wide interval for each candidate.
# - Question 3 is the most difficult one. The questions do not differ in discrimination
#   beyond chance, and the Rasch model is enough.
# - The estimates agree with those that R's `ltm` prints, to all its digits.
# - With a file, `latentbits fit 2PL --data FILE` prints all of this, with item fit,
#   M₂ and reliability; see [items, estimators and sizes](../docs/estimators.md).
