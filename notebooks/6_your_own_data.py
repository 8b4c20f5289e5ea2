# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Your own data: a questionnaire with holes
#
# From a file of yes and no, with answers missing, to a map, to factors with intervals, to
# predictions for what was not answered, and to a report. Last, a program of your own on the same
# file. Every step is also a command, named beside it.

# %%
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas
from jax import random
from latentbits.inference.baselines.samplers import nuts
from latentbits.inference.cli import main as latentbits
from latentbits.inference.evaluation.prediction import cell_probabilities, reliability
from latentbits.inference.evaluation.symmetry import align
from latentbits.inference.numerics.compiling import hurry
from latentbits.inference.studies.catalogue import find_program
from latentbits.inference.studies.comparison.compare import compare
from latentbits.inference.studies.comparison.side_by_side import processes
from latentbits.inference.studies.map.figure import items_figure
from latentbits.inference.studies.map.fit import draw, fit_map
from latentbits.inference.studies.notebook import said, scores, show
from latentbits.inference.studies.report.page import render
from latentbits.models import bernoulli_product, latent_trait
from latentbits.models.data import InputError, load_mixed, load_table
from numpyro.infer import Predictive

from latentbits import QuadratureEM, standard_errors

small = "LATENTBITS_SMALL" in os.environ  # for a test: everything runs, nothing is learned
hurry()  # tables are small here: to compile well would take longer than it saves
os.chdir(tempfile.mkdtemp())

# %% [markdown]
# ## The file
#
# Not real, but made as such files are: 400 people, twelve questions, two traits behind the answers
# (how green and how active in public life somebody is), single answers left out, and people who
# stop half-way. Since it is made up, the answers that are missing are known, and predictions can be
# checked below. Skip this cell for a file of yours.

# %%
green = "cycles_to_work owns_car eats_meat takes_flights buys_organic sorts_waste"
active = "votes reads_news signs_petition gives_money in_a_club helps_others"
questions = [*green.split(), *active.split()]
truth = {
    "weights": np.array([
        [1.6, -1.8, -1.2, -1.0, 1.4, 1.1, 0.1, 0.2, 0.9, 0.5, 0.0, -0.1],
        [0.1, 0.1, 0.0, -0.2, 0.1, 0.4, 1.5, 1.3, 1.2, 1.0, 1.6, 1.1],
    ]),
    "bias": np.array([-0.6, 0.5, 1.0, 0.2, -0.3, 1.2, 1.1, 0.6, -0.8, -0.2, -0.5, 0.7]),
}  # fmt: skip
drawn = Predictive(latent_trait, truth, num_samples=1, batch_ndims=0)(
    random.key(0), num_data=60 if small else 400, num_features=12
)
answers = np.asarray(drawn["observed"]).reshape(-1, 12)
rng = np.random.default_rng(0)
given = rng.random(answers.shape) > 0.06
stops = np.where(rng.random(len(answers)) < 0.12, rng.integers(4, 12, len(answers)), 12)
given &= np.arange(12) < stops[:, None]
text = np.where(given, np.where(answers == 1, "yes", "no"), "")
pandas.DataFrame(text, columns=questions).to_csv("survey.csv", index=False)
print(*Path("survey.csv").read_text().splitlines()[:4], sep="\n")

# %% [markdown]
# ## Check
#
# `latentbits check` reads file and program and says what is wrong, or which methods apply, before
# any long work. The commands can be called from Python as well.

# %%
_ = latentbits(["check", "latent_trait", "--data", "survey.csv"])

# %% [markdown]
# What is wrong is said in one line, with the row as it is counted in the file.

# %%
broken = Path("survey.csv").read_text().replace("yes", "yse", 1)
Path("broken.csv").write_text(broken)
try:
    load_table("broken.csv")
except InputError as error:
    print(error)

# %% [markdown]
# ## Map
#
# `latentbits map survey.csv --lines` draws this: each person's place, with an ellipse where little
# is known of it, and for each question the line on which yes and no are equally likely. Who
# answered few questions has a wide ellipse and lies nearer to the middle. Nothing was filled in to
# make the map: a missing answer is left out of its row's likelihood.

# %%
mixed = load_mixed("survey.csv")
found, places, nats = fit_map(mixed, num_steps=5 if small else 150)
missing = 1 - mixed.mask.mean()
print(f"{len(mixed.values)} people, {missing:.0%} of the answers missing, {nats:.3f} nats a row")
show(draw, found, places, lines=True)

# %% [markdown]
# ## Factors and intervals
#
# `load_table` gives the values and the mask, and every program takes both. Maximum likelihood by
# quadrature, exact in two dimensions, then standard errors from its curvature. The factors can be
# turned without changing the fit; the errors are those of the form with orthogonal rows of weights,
# the longer first. NUTS needs no such theory: here are its 95 % intervals, after every draw was
# turned to the fit.

# %%
table = load_table("survey.csv")
em = QuadratureEM(latent_trait, num_nodes=11)
fit = em.run(random.key(1), 5 if small else 100, table.values, tolerance=1e-7, mask=table.mask)
errors = standard_errors(latent_trait, fit.params, table.values, num_nodes=11, mask=table.mask)
length = 10 if small else 300
sizes = {"num_warmup": length, "num_samples": length}
draws = nuts(latent_trait, random.key(2), table.values, mask=table.mask, **sizes)
turned = align(latent_trait, draws.params, fit.params)
estimates = {
    "maximum likelihood ± 1.96 standard errors": {
        site: np.stack([fit.params[site] + step * errors[site] for step in (-1.96, 0, 1.96)])
        for site in ("weights", "bias")
    },
    "NUTS, median and 95 %": {
        site: np.quantile(turned[site], (0.025, 0.5, 0.975), axis=(0, 1))
        for site in ("weights", "bias")
    },
}
show(items_figure, table.columns, estimates)

# %% [markdown]
# The first factor parts those who are green and active from those who are neither, the second the
# active from the green. Any turn of the plane fits as well: the two traits that made the file lie
# between. The biases have the same intervals both ways. Those of the weights are a little narrower
# by NUTS, for to turn each draw to the fit takes away what is uncertain of the turn itself.
# `latentbits calibrate latent_trait` shows how often such intervals hold the truth.
#
# ## What would they have said?
#
# The chance of a yes in every hole, given the other answers of the same person, averaged over the
# draws of NUTS. `latentbits fit` keeps a fit in a file, and `latentbits complete` fills in with it.

# %%
holes = np.argwhere(~table.mask)
some = {site: x[:, ::12].reshape(-1, *x.shape[2:]) for site, x in draws.params.items()}
chance = cell_probabilities(latent_trait, some, table.values, holes, mask=table.mask, num_nodes=9)
filled = pandas.DataFrame({
    "person": holes[:, 0] + 1, "question": np.array(questions)[holes[:, 1]],
    "chance of a yes": chance.round(2), "would have said": answers[tuple(holes.T)],
})  # fmt: skip
filled.head(8)

# %%
bits = answers[tuple(holes.T)]
rate = np.where(table.mask, table.values, 0).sum(0) / table.mask.sum(0)
ways = {"by the person's other answers": chance, "by the question alone": rate[holes[:, 1]]}
for name, told in ways.items():
    one, right = reliability(told, bits, num_bins=5), np.mean((told > 0.5) == bits)
    print(f"{name:30s} right in {right:.0%}, {one['log_score']:.3f} nats a hole, "
          f"calibration error {one['error']:.3f} ({one['expected']:.3f} by chance)")  # fmt: skip

# %%
steps = "5" if small else "100"
for command in (
    f"fit latent_trait --data survey.csv --steps {steps} --out fit.nc",
    "complete fit.nc --data survey.csv --out filled.csv",
):
    latentbits(command.split())
print(*Path("filled.csv").read_text().splitlines()[1:3], sep="\n")

# %% [markdown]
# ## Which method for these data?
#
# `latentbits compare latent_trait --data survey.csv` runs all that apply; here are four, two at a
# time in processes of their own (`--jobs 2`). A quarter of the people is held out. The report is
# one HTML file, complete in itself.

# %%
program, methods = latent_trait, ["QuadratureEM", "BoundEM", "NUTS", "SVI mean_field"]
if small:
    program, methods = bernoulli_product, ["MAP"]
with nullcontext() if small else processes(2) as pool:
    # No budget of seconds: what is said below must not depend on how busy the machine was.
    race = compare(program, table.values, methods, mask=table.mask, budget=None, pool=pool)
race.table["columns"] = np.array(table.columns)
page = render(race)
Path("report.html").write_bytes(page)
print(f"report.html: {len(page) / 1000:.0f} kB")
scores(race)

# %%
said(race)

# %% [markdown]
# ## A program of your own
#
# Perhaps there is only one trait, and some people say yes to everything. That is another program:
# parameters first, then, inside a plate over the people, what belongs to one of them, in
# whatever names you like. It takes the data as its first argument and, as this file has holes, a
# `mask`.

# %%
Path("mine.py").write_text("""
import numpyro
import numpyro.distributions as dist


def yes_sayers(answers, *, mask=None):
    num_people, num_questions = answers.shape
    load = numpyro.sample("load", dist.Normal(0, 3).expand((num_questions,)).to_event(1))
    ease = numpyro.sample("ease", dist.Normal(0, 5).expand((num_questions,)).to_event(1))
    habit = numpyro.sample("habit", dist.HalfNormal(2))
    with numpyro.plate("people", num_people):
        person = numpyro.sample("person", dist.Normal(0, 1).expand((2,)).to_event(1))
        logits = person[..., :1] * load + habit * person[..., 1:] + ease
        answer = dist.Bernoulli(logits=logits)
        answer = answer if mask is None else answer.mask(mask)
        numpyro.sample("answered", answer.to_event(1), obs=answers)
""")
yes_sayers = find_program("mine:yes_sayers")
_ = latentbits(["check", "mine:yes_sayers", "--data", "survey.csv"])

# %% [markdown]
# Nothing was written for it, and still quadrature applies: the nodes go through the program, and
# the M-step is quasi-Newton on the expected log joint. Both programs see the same rows, so their
# likelihoods can be compared, less one for each parameter (Akaike).

# %%
own = QuadratureEM(yes_sayers, num_nodes=11)
mine = own.run(random.key(3), 3 if small else 60, table.values, mask=table.mask, tolerance=1e-6)
totals = {
    "one trait and yes-saying": (own.evidence(mine.params, table.values, mask=table.mask), 25),
    "two traits": (em.evidence(fit.params, table.values, mask=table.mask), 35),  # 36, less a turn
}
for name, (evidence, count) in totals.items():
    total = float(evidence.sum())
    print(f"{name:26s} log likelihood {total:.1f}, less {count} parameters {total - count:.1f}")
print(f"habit of saying yes: {float(mine.params['habit']):.2f}")

# %% [markdown]
# Two traits explain these people better than one and a habit, by far more than their ten parameters
# cost. What a program
# of your own must satisfy is what `check` looks at: one plate over the rows, latents of a row
# inside it and before what is observed, and parameters outside.
