"""The estimators: scikit-learn's own checks, frames, missing cells, pipelines, grids and files."""

import dataclasses
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import latentbits
from inference import QuadratureEM
from inference.cli import main
from inference.items.estimators import LatentTrait
from ppl_models import latent_trait

NAMES = (
    "LatentTrait", "LatentClasses", "ClippedGaussian", "CombinationMachine", "SparseCoding",
    "NoisyOr",
)  # fmt: skip


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    probability = 1 / (1 + np.exp(-rng.normal(size=(200, 1)) * [1.0, 2.0, 1.5, 1.0, 0.8]))
    return pd.DataFrame((rng.random((200, 5)) < probability).astype(float), columns=list("abcde"))


@pytest.fixture(scope="module")
def trait(table):
    return LatentTrait(random_state=0).fit(table)


def test_scikit_learns_checks_pass():
    """All of them. The estimators have one class for everything but the program and its size; each
    fit compiles, so that the one that compiles soonest goes through, and the others below without a
    fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Three steps end where they began: at draws from the rows, which are others if repeated.
        apart = {"check_sample_weight_equivalence_on_dense_data": "starts are drawn from the rows"}
        estimator = latentbits.LatentClasses(binarize="mean", max_steps=3)
        check_estimator(estimator, expected_failed_checks=apart, on_skip=None)


WITHOUT_FIT = [
    "estimator_cloneable",
    "estimator_tags_renamed",
    "valid_tag_types",
    "estimator_repr",
    "no_attributes_set_in_init",
    "estimators_unfitted",
    "do_not_raise_errors_in_init_or_set_params",
    "mixin_order",
    "transformers_unfitted",
    "parameters_default_constructible",
    "get_params_invariance",
    "set_params",
]


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_the_constructor(name):
    estimator = getattr(latentbits, name)(random_state=3)
    for fresh, check in estimator_checks_generator(estimator):
        if check.func.__name__.removeprefix("check_") in WITHOUT_FIT:
            check(fresh)
    size = next(x.name for x in dataclasses.fields(estimator) if x.name.startswith("num_"))
    assert clone(estimator).get_params() == estimator.get_params()
    assert estimator.set_params(**{size: 4})._outputs() == 4
    assert estimator._method().admits.__self__ is estimator._method()


def test_frames_in_and_out_and_missing_cells(table):
    polars = pytest.importorskip("polars")
    holes = table.mask(np.random.default_rng(1).random(table.shape) < 0.1)
    trait = LatentTrait(random_state=0).fit(holes).set_output(transform="pandas")
    scores = trait.transform(holes)
    assert list(scores.columns) == ["latenttrait0"] and scores.index.equals(table.index)
    seen = {"mask": holes.notna().to_numpy(), "num_factors": 1}
    with jax.enable_x64(True):  # as the estimator computes
        wanted = QuadratureEM(latent_trait).posterior(trait.params_, table.to_numpy(), **seen)
    np.testing.assert_allclose(scores, wanted.mean, atol=1e-6)
    # An unseen cell adds nothing to a row's likelihood.
    unseen = table.copy()
    unseen.loc[0] = np.nan
    assert trait.score_samples(unseen)[0] == pytest.approx(0.0, abs=1e-6)

    frame = polars.DataFrame({x: [None if np.isnan(v) else v for v in holes[x]] for x in holes})
    of_polars = LatentTrait(random_state=0).fit(frame).set_output(transform="polars")
    found = of_polars.transform(frame)
    assert isinstance(found, polars.DataFrame) and found.columns == ["latenttrait0"]
    np.testing.assert_array_equal(found, scores)


def test_a_cell_that_is_no_bit_is_named(table):
    wrong = table.copy()
    wrong.loc[7, "c"] = 2.0
    with pytest.raises(ValueError, match="row 8, column c holds 2: wanted 0 or 1"):
        LatentTrait().fit(wrong)


def test_constant_columns_are_left_out(table, trait):
    more = table.assign(same=1.0)
    fitted = LatentTrait(random_state=0).fit(more)
    assert fitted.kept_.tolist() == [True] * 5 + [False]
    np.testing.assert_allclose(fitted.score(more), trait.score(table))
    assert np.isnan(fitted.sample(2)[:, 5]).all() and np.isin(fitted.sample(2)[:, :5], (0, 1)).all()


def test_pipelines_and_grids_take_them():
    """Noisy copies of two rows."""
    table = np.tile([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]], (30, 1))
    table = table ^ (np.random.default_rng(0).random(table.shape) < 0.1)
    classes = latentbits.LatentClasses(random_state=0, max_steps=20)
    chain = make_pipeline(classes, StandardScaler())
    assert abs(chain.fit_transform(table).mean()) < 1e-6
    grid = GridSearchCV(classes, {"num_components": [1, 2]}, cv=2).fit(table)
    assert grid.best_params_["num_components"] == 2  # as it was made
    assert grid.best_score_ == pytest.approx(grid.cv_results_["mean_test_score"].max())


def test_a_figure_shows_what_was_fitted(trait):
    """Curves of items from the fit's own slopes; of other estimators profiles and loadings."""
    curves = trait.plot().subfigs[0].axes[0].lines
    slope, bias = trait.params_["weights"][0], trait.params_["bias"]
    for i, curve in enumerate(curves):
        wanted = 1 / (1 + np.exp(-slope[i] * curve.get_xdata() - bias[i]))
        np.testing.assert_allclose(curve.get_ydata(), wanted, atol=1e-6)
    made = {
        latentbits.LatentClasses(2): {"probs": np.full((2, 5), 0.3)},
        LatentTrait(num_factors=2): {"weights": np.ones((2, 5)), "bias": np.zeros(5)},
        latentbits.NoisyOr(2): {"weights_1": np.ones((2, 5))},
    }
    titles = []
    for estimator, params in made.items():
        estimator.params_, estimator.kept_, estimator.n_features_in_ = params, np.full(5, True), 5
        titles.append(estimator.plot().subfigs[0].get_suptitle())
    assert titles == ["Class profiles", "Loadings", "Parameters weights_1"]


def test_a_saved_estimator_is_a_fit_that_the_commands_use(table, trait, tmp_path):
    trait.save(tmp_path / "fit.nc")
    again = LatentTrait.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.transform(table), trait.transform(table))
    assert again.get_feature_names_out().tolist() == ["latenttrait0"]
    with pytest.raises(ValueError, match="holds no saved LatentClasses"):
        latentbits.LatentClasses.load(tmp_path / "fit.nc")
    table.to_csv(tmp_path / "rows.csv", index=False)
    args = [str(tmp_path / x) for x in ("fit.nc", "rows.csv", "out.csv")]
    assert main(["transform", args[0], "--data", args[1], "--out", args[2]]) == 0
    out = pd.read_csv(args[2])
    np.testing.assert_allclose(out["factors_1"], trait.transform(table)[:, 0], atol=1e-5)
