"""Tables of every shape, kind and degeneracy: a result that the oracle agrees with, or one error.

Cells are drawn as a person may have typed them, and read back; arrays are handed to the methods.
Reading compiles nothing, so that many tables are read; a method compiles for each shape, so that
the tables of one shape share it.
"""

import jax
import numpy as np
import oracle
import pytest
from hostile import assert_exit, examples, refused
from hypothesis import given
from hypothesis import strategies as st
from jax import numpy as jnp
from jax import random

from inference import (
    EM,
    ContrastiveDivergence,
    ExactGradient,
    GibbsEM,
    MomentInversion,
    MonteCarloEM,
    ProjectionPursuit,
    QuadratureEM,
    SplittingEM,
    TruncatedEM,
    likelihood,
)
from inference.baselines.samplers import nuts
from inference.baselines.variational import svi
from ppl_models import (
    bernoulli_mixture,
    binary_sparse_coding,
    clipped_gaussian,
    combination_machine,
    latent_trait,
    noisy_or_network,
)
from ppl_models.data import InputError, load_mixed, load_table
from ppl_models.data.cells import MOST_COLUMNS

WORDS = {"": None, "?": None, "NA": None, "0": 0, "1": 1, "0.0": 0, "yes": 1, "No": 0, "true": 1}
OTHER = ("2", "-1", "maybe", "inf", "1e400", "9" * 400, '"', "0x1", "١", "1_0")
cells = st.one_of(st.sampled_from(sorted(WORDS)), st.sampled_from(OTHER), st.text(max_size=3))
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=5)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def load(path, reader=load_table, **options):
    """The table, or None where it was refused in one line."""
    try:
        table = reader(path, **options)
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return None
    assert table.values.dtype == np.float32 and np.isfinite(table.values).all()
    assert table.mask.dtype == bool and not table.values[~table.mask].any()
    assert table.values.shape == table.mask.shape and table.values.shape[1] == len(table.columns)
    return table


@given(rows=tables, header=st.sampled_from([None, True, False]))
@examples(200)
def test_text_is_read_as_it_stands_or_refused(folder, rows, header):
    path = folder / "typed.csv"
    path.write_bytes("\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass"))
    for kind in ("binary", "real"):
        load(path, kind=kind, allow_constant=True, allow_empty=True, header=header)
    load(path, load_mixed, header=header)


@given(st.lists(st.lists(st.sampled_from(sorted(WORDS)), min_size=2, max_size=2), min_size=2))
@examples(80)
def test_what_is_read_is_what_was_written(folder, rows):
    path = folder / "plain.csv"
    path.write_text("a,b\n" + "".join(",".join(row) + "\n" for row in rows))
    table = load(path, allow_constant=True, allow_empty=True, header=True)
    if table is None:  # words among numbers, of which the message says which
        column = [
            {x in ("yes", "No", "true") for x in c if WORDS[x] is not None}
            for c in zip(*rows, strict=True)
        ]
        assert any(len(kinds) > 1 for kinds in column)
        return
    wanted = np.array([[WORDS[cell] for cell in row] for row in rows], float)
    np.testing.assert_array_equal(table.mask, ~np.isnan(wanted))
    np.testing.assert_array_equal(table.values, np.nan_to_num(wanted))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a,b\n1"0,0\n0,1"\n', ("row 2, column 'a'", "found '1\"0'")),
        ('a\n1 "0,1"\n', ("row 2: has 2 cells, but row 1 has 1",)),
        ("a,b\n" + "9" * 400 + ",1\n0,0\n", ("row 2", "found inf")),
        (",".join("01" * (MOST_COLUMNS // 2 + 1)), ("100002 columns", "on its side")),
    ],
    ids=["quote", "beyond", "huge", "wide"],
)
def test_text_that_parsers_disagree_on(folder, text, words):
    path = folder / "odd.csv"
    path.write_text(text)
    with refused(str(path), *words):
        load_table(path, header=len(words) > 0 and "columns" not in words[0])


def test_numbers_beyond_float32_are_no_numbers(folder):
    path = folder / "large.csv"
    path.write_text("a,b\n1e39,0\n1,1\n")
    for reader, options in ((load_mixed, {}), (load_table, {"kind": "real"})):
        with refused("row 2, column 'a'", "found 1e+39", "finite number (of float32)"):
            reader(path, **options)


DTYPES = ("?", "i1", "u1", "i8", "u8", "f2", "f4", "f8", "c8", "U3", "S2", "M8[s]", "O", "V4")


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 3), max_size=3),
    packed=st.sampled_from([None, None, -1, 0, 3, 8, 2.5, True, 10**12]),
)
@examples(150)
def test_arrays_of_every_kind(folder, dtype, shape, packed):
    path = folder / "array.npy"
    np.save(path, np.zeros(shape, dtype), allow_pickle=True)
    for kind in ("binary", "real"):
        load(path, kind=kind, packed=packed, allow_constant=True)
    load(path, load_mixed, packed=packed)


def test_a_table_on_its_side_is_refused_before_any_work(folder, capfd):
    wide = folder / "wide.npy"
    np.save(wide, np.zeros((2, 10**6), np.int8))
    with refused("1000000 columns", "on its side"):
        load_table(wide)
    for command in (
        ["check", "bernoulli_product", "--data", wide],
        ["fit", "bernoulli_product", "--data", wide, "--out", folder / "fit.nc"],
        ["compare", "bernoulli_product", "--data", wide, "--out", folder / "out"],
        ["map", wide, "--out", folder / "map.svg"],
    ):
        assert_exit(capfd, command, "1000000 columns", folder=folder)


METHODS = {
    "EM": (EM(bernoulli_mixture), {"num_components": 2}),
    "TruncatedEM": (TruncatedEM(binary_sparse_coding, max_active=1, num_candidates=2),
                    {"num_causes": 3}),
    "ExactGradient": (ExactGradient(combination_machine), {"num_causes": 2}),
    "ContrastiveDivergence": (ContrastiveDivergence(combination_machine), {"num_causes": 2}),
    "ProjectionPursuit": (ProjectionPursuit(combination_machine), {"num_causes": 2}),
    "SplittingEM": (SplittingEM(bernoulli_mixture), {"num_components": 2}),
    "QuadratureEM": (QuadratureEM(latent_trait), {"num_factors": 1}),
    "MonteCarloEM": (MonteCarloEM(latent_trait), {"num_factors": 1}),
    "MomentInversion": (MomentInversion(clipped_gaussian), {"num_factors": 1}),
    "GibbsEM": (GibbsEM(noisy_or_network), {"layers": (2,)}),
}  # fmt: skip

BITS = np.array([[0, 0, 1], [1, 0, 0], [1, 1, 0], [0, 1, 1]], np.float32)
HOLES = BITS.astype(bool)


def changed(value, at=(2, 1)):
    table = BITS.astype(np.float64)
    table[at] = value
    return table


BAD = {
    "nan": (changed(np.nan), {}, "nan at index (2, 1)"),
    "inf": (changed(-np.inf), {}, "-inf at index (2, 1)"),
    "large": (changed(1e30), {}, "1e+30 at index (2, 1)"),
    "long": (changed(2**40).astype(np.int64), {}, "1099511627776 at index (2, 1)"),
    "text": (BITS.astype(str), {}, "<U32"),
    "object": (BITS.astype(object), {}, "object"),
    "complex": (BITS.astype(np.complex64), {}, "complex64"),
    "list": (BITS.tolist(), {}, "is a list"),
    "masked": (np.ma.masked_array(BITS, HOLES), {}, "masked array"),
    "empty": (BITS[:0], {}, "is empty: shape (0, 3)"),
    "narrow": (BITS[:, :0], {}, "is empty: shape (4, 0)"),
    "wide": (np.zeros((2, 10**6), np.int8), {}, "1000000 columns"),
    "one axis": (BITS[0], {}, "shape (3,)"),
    "number": (1.0, {}, "shape ()"),
    "nothing": (None, {}, "give `data`"),
    "mask of numbers": (BITS, {"mask": BITS}, "mask holds float32"),
    "mask list": (BITS, {"mask": HOLES.tolist()}, "mask is a list"),
    "mask shape": (BITS, {"mask": HOLES.T}, "`mask` has shape (3, 4)"),
    "all missing": (BITS, {"mask": HOLES & False}, "mask is False everywhere"),
    "rows": (BITS, {"num_data": 2}, "`num_data` is 2"),
    "size": (BITS, {"SIZE": -1}, "-1"),
    "half a size": (BITS, {"SIZE": 2.5}, "fails: TypeError"),
    "no size": (BITS, {"SIZE": None}, "fails: TypeError"),
    "huge size": (BITS, {"SIZE": 10**9}, "1000000000"),
    "unknown": (BITS, {"num_clauses": 3}, "num_clauses"),
}


def arguments(name, more):
    sizes = dict(METHODS[name][1])
    more = dict(more)
    if "SIZE" in more:
        (size,) = sizes
        value = more.pop("SIZE")
        sizes[size] = (value,) if size == "layers" else value
    return {**sizes, **more}


@pytest.mark.parametrize("name", METHODS)
def test_methods_refuse_what_they_cannot_use(name):
    for case, (data, more, words) in BAD.items():
        with refused() if name == "MomentInversion" and "size" in case else refused(words):
            METHODS[name][0].run(random.key(0), 1, data, **arguments(name, more))


@pytest.mark.parametrize("name", [x for x in METHODS if x != "TruncatedEM"])
def test_what_is_no_bit_is_none_for_any_method(name):
    for value in (2.0, 0.5, -1.0):
        with refused(f"{value}", "0 "):
            METHODS[name][0].run(random.key(0), 1, changed(value), **METHODS[name][1])


@pytest.mark.parametrize("case", ["nan", "wide", "text", "list", "all missing"])
def test_generic_inference_looks_at_its_data_too(case):
    data, more, words = BAD[case]
    for run in (nuts, svi):
        with refused(words):
            run(bernoulli_mixture, random.key(0), data, num_components=2, **more)
    with refused(words):
        likelihood(bernoulli_mixture, data, num_components=2, **more)


bits = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=4, max_size=4)
PARAMS = {
    "mixing": np.array([0.3, 0.7], np.float32),
    "probs": np.array([[1e-6, 0.4, 0.999999], [0.8, 0.5, 0.3]], np.float32),
}


@jax.jit  # once for all tables
def posterior(values, mask):
    posterior = EM(bernoulli_mixture, chunk_size=3).posterior(
        PARAMS, values, mask=mask, num_components=2
    )
    return posterior.evidence, posterior.mean


@given(values=bits, mask=bits, dtype=st.sampled_from(["?", "f4"]))
@examples(100)
def test_any_table_of_bits_has_the_evidence_of_the_oracle(values, mask, dtype):
    """Constant and doubled columns, doubled rows, nothing seen of a row or a column."""
    mask = np.array(mask)
    values = np.where(mask, np.array(values), False)
    evidence, mean = posterior(values.astype(dtype), mask)
    table = np.stack([
        oracle.log_joint_bernoulli_mixture(
            {**PARAMS, "component": np.full(4, k)}, values.astype(float), mask
        )
        for k in range(2)
    ])  # fmt: skip
    wanted = np.logaddexp.reduce(table, axis=0)
    np.testing.assert_allclose(evidence, wanted, rtol=1e-5, atol=1e-5)
    assert np.isfinite(mean).all()


EXTREME = {
    "zeros": np.zeros((4, 3), np.float32),
    "ones": np.ones((4, 3), np.float32),
    "one row over and over": np.repeat(BITS[:1], 4, axis=0),
    "a column twice": BITS[:, [0, 0, 1]],
}


@pytest.mark.filterwarnings("ignore::inference.reading.small_scales.ScaleWarning")
@pytest.mark.parametrize("case", EXTREME)
@pytest.mark.parametrize("name", ["EM", "TruncatedEM"])
def test_extreme_tables_are_fitted(name, case):
    """Equal rows are certain: a mixture gives them probability one, and a cause is such a row, with
    hardly any noise. Of equal columns the parameters are equal."""
    (method, sizes), table = METHODS[name], EXTREME[case]
    noise = lambda params: params.get("noise", jnp.ones(()))  # noqa: E731
    result = method.run(random.key(0), 10, table, progress_bar=False, record=noise, **sizes)
    params, losses = result.params, np.asarray(result.losses)
    # Smaller than float32 can tell from the squares of these rows.
    least = np.sqrt(np.finfo(np.float32).eps)
    told = np.asarray(result.history)[:-1] > least
    assert len(losses) == 10 and (np.diff(losses)[told] < 1e-4).all()
    assert all(np.isfinite(value).all() for value in params.values())
    if case == "a column twice":
        columns = params["probs" if name == "EM" else "weights"].T
        np.testing.assert_allclose(columns[0], columns[1], rtol=1e-6)
        # No model of bits is better than one that has these four rows and no other.
        assert name != "EM" or losses[-1] > 4 * np.log(4)
    elif name == "EM":
        np.testing.assert_allclose(params["mixing"] @ params["probs"], table[0], atol=1e-4)
        np.testing.assert_allclose(losses[-1], 0, atol=1e-4)
    else:
        np.testing.assert_allclose(params["weights"], table[:3], atol=1e-4)
        assert 0 < params["noise"] < least and 0 < params["sparsity"] < 1
