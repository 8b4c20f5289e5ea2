"""A user's mixed table from file to map: what is read, what is refused, what is drawn."""

import io

import jax
import numpy as np
import pytest
from jax import random
from matplotlib.figure import Figure
from numpyro.handlers import seed, substitute, trace

from inference.cli import main, make_parser
from inference.files.map.figure import label_categories, merge, spread_places
from inference.files.map.fit import Map, draw, fit_map
from inference.papers.latent_trait import divergence
from ppl_models import mixed_trait
from ppl_models.data import InputError, load_mixed
from ppl_models.mixed_trait import Layout


def people(path, rows=120, start=0):
    """Three groups that differ in numbers, bits and words; some cells are missing."""
    rng = np.random.default_rng(0)
    lines = ["age,smokes,town,group"]
    for row in range(300):
        group = rng.integers(3)
        age = rng.normal([30, 50, 60][group], 3)
        smokes = rng.random() < [0.1, 0.9, 0.2][group]
        town = rng.choice(["Ulm", "Jena", "Bonn"], p=np.roll([0.8, 0.1, 0.1], group))
        cells = [f"{age:.1f}", "yes" if smokes else "no", town, "ABC"[group]]
        if rng.random() < 0.2:
            cells[rng.integers(3)] = ""
        if start <= row < start + rows:
            lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_kinds_are_seen_from_the_cells(tmp_path):
    table = load_mixed(people(tmp_path / "people.csv"), label="group")
    assert table.columns == ("age", "smokes", "town")
    assert table.kinds == ("real", "binary", 3)
    assert table.levels == ((), ("no", "yes"), ("Ulm", "Jena", "Bonn"))
    assert set(table.label) == {"A", "B", "C"}
    assert not table.mask.all() and (table.values[~table.mask] == 0).all()


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"town": "real"}, "row 2, column 'town'"),
        ({"town": "binary"}, "3 levels"),
        ({"height": "real"}, "no column 'height'"),
        ({"town": "odd"}, "none of real"),
    ],
)
def test_wrong_kinds_are_refused(tmp_path, kinds, words):
    with pytest.raises(InputError, match=words):
        load_mixed(people(tmp_path / "people.csv"), kinds=kinds)


def test_too_many_words_and_one_value_are_refused(tmp_path):
    file = tmp_path / "names.csv"
    file.write_text("name,a\n" + "\n".join(f"n{i},{i % 2}" for i in range(40)) + "\n")
    with pytest.raises(InputError, match="40 different cells"):
        load_mixed(file)
    file.write_text("a,b\n1,x\n1,y\n")
    with pytest.raises(InputError, match="every cell is 1"):
        load_mixed(file)


def test_layout_splits_and_joins():
    layout = Layout.of((4, "real", "binary", 3, "real", 3))
    values = np.arange(2 + 1 + 2 + 2 + 3.0)
    real, bits, levels = layout.split(values)
    assert real.tolist() == [0, 1] and bits.tolist() == [2]
    assert levels[3].tolist() == [[3, 4], [5, 6]] and levels[4].tolist() == [[7, 8, 9]]
    assert (np.asarray(layout.join(real, bits, levels)) == values).all()
    assert layout.column_of.tolist() == [1, 4, 2, 3, 3, 5, 5, 0, 0, 0]


def test_program_draws_what_it_scores():
    """The table it returns holds each site in its own column."""
    kinds = (3, "real", "binary")

    @jax.jit
    def draw(key):
        program = seed(mixed_trait, key)
        sites = trace(program).get_trace(num_data=6, kinds=kinds)
        given = {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}
        return given, substitute(program, data=given)(num_data=6, kinds=kinds)

    given, table = draw(random.key(0))
    for column, name in enumerate(("observed_3", "observed_real", "observed_binary")):
        np.testing.assert_allclose(table[:, column], given[name][:, 0])


def test_command_maps_saves_and_places_new_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "old.csv")
    people(tmp_path / "new.csv", rows=120, start=150)
    options = ["--label", "group", "--lines", "--steps", "15"]
    assert main(["map", "old.csv", *options, "--save", "m.npz", "--places", "p.csv"]) == 0
    said = capsys.readouterr().out
    for guess in ("real        1: age", "binary      1: smokes", "categorical 1: town"):
        assert guess in said
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    places = np.genfromtxt(tmp_path / "p.csv", delimiter=",", skip_header=1, usecols=(1, 2, 3, 4))
    assert places.shape == (120, 4) and (places[:, 2:] <= 1.0).all()

    saved = Map.load(tmp_path / "m.npz")
    table = load_mixed(tmp_path / "old.csv", label="group")
    again = saved.transform(table)
    np.testing.assert_allclose(again.mean, places[:, :2], atol=1e-3)
    # The groups lie apart: most rows are nearest to the mean of their own.
    mean = np.asarray(again.mean)
    names = np.unique(table.label)
    centres = np.stack([mean[table.label == x].mean(0) for x in names])
    nearest = names[np.linalg.norm(mean[:, None] - centres, axis=-1).argmin(1)]
    assert (nearest == table.label).mean() > 0.8

    # A category is named at the mean of its rows, or up to three lines of text above or below.
    axes = draw(saved, again, table=table).axes[0]
    texts = {text.get_text(): text.get_position() for text in axes.texts}
    towns = table.columns.index("town")
    assert set(texts) == set(table.levels[towns])
    for number, town in enumerate(table.levels[towns]):
        x, y = mean[table.mask[:, towns] & (table.values[:, towns] == number)].mean(0)
        assert abs(texts[town][0] - x) < 1e-6
        assert abs(texts[town][1] - y) <= 0.151 * axes.get_xlim()[1]

    assert main(["map", "new.csv", "--label", "group", "--onto", "m.npz", "--out", "n.png"]) == 0
    assert (tmp_path / "n.png").read_bytes().startswith(b"\x89PNG")


def test_places_may_be_negative():
    words = ["map", "bits.npy", "--image", "4x4", "--at", "-1,2", "-.5,-2", "0,1"]
    assert make_parser().parse_args(words).at == [(-1.0, 2.0), (-0.5, -2.0), (0.0, 1.0)]


def test_command_refuses_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "old.csv")
    for options, words in (
        (["nope.csv"], "no such file"),
        (["old.csv", "--label", "x"], "no column 'x'"),
        (["old.csv", "--out", "map.bmp"], ".png or .svg or .pdf"),
        (["old.csv", "--onto", "old.csv"], "without a checksum"),
        (["old.csv", "--image", "4x4"], "1 binary columns"),
    ):
        assert main(["map", *options]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_map_needs_two_columns(tmp_path):
    file = tmp_path / "one.csv"
    file.write_text("a\n1\n0\n")
    with pytest.raises(InputError, match="at least 2"):
        fit_map(load_mixed(file))


def test_equal_patterns_are_one_spot_of_each_label():
    mean = np.array([[0.0, 1.0], [0.0, 1.00001], [2.0, 1.0], [0.0, 1.0]])
    spots = merge(mean, np.tile(np.eye(2), (4, 1, 1)), [0, 0, 0, 1])
    assert sorted(spots.rows.tolist()) == [1, 1, 2]
    assert len(spread_places(np.random.default_rng(0).normal(size=(50, 2)))) == 4


def test_names_of_categories_are_no_formulas():
    figure = Figure()
    axes = figure.subplots()
    label_categories(axes, np.zeros((3, 2)), {"A_1 $x^$": np.ones(3, bool)}, [])
    figure.savefig(io.BytesIO())  # a formula that is none cannot be drawn
    figure.clear()


def test_divergence_is_that_of_two_gaussians_by_hand():
    """Without columns' weights the true posterior is the prior: KL(N(μ, S) ‖ N(0, I))."""
    from inference.methods.continuous.factors import FactorPosterior

    mean = jax.numpy.array([[0.5, -1.0]])
    spread = jax.numpy.array([[[0.4, 0.1], [0.1, 0.8]]])
    params = {"weights": jax.numpy.zeros((2, 3)), "bias": jax.numpy.zeros(3)}
    exact = jax.numpy.array([3 * np.log(0.5)])
    posterior = FactorPosterior(mean, spread, exact, exact, exact)
    nats = divergence(params, jax.numpy.ones((1, 3)), posterior, exact)
    wanted = 0.5 * (1.2 + 1.25 - 2.0 - np.log(0.4 * 0.8 - 0.01))
    np.testing.assert_allclose(nats, wanted, atol=1e-4)
