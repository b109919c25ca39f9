"""Models of every kind of noise and mean through all commands, from a table to an evaluation, against dense algebra."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dkgp.codec import from_json
from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.data.stores.manifest import read_manifest
from dkgp.models import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.noise import NoiseModel, StudentT
from tests.cli.invoke import Places, Shell
from tests.cli.measuring import measure_little

Array = np.ndarray
STEEP = "the linear mean"
UNTOLD = {
    "ingest untold": "ingest @t.csv @untold --target y --drop s --test-fraction 0.3 --test-out @untold_test",
    "tune untold": "tune @untold --out @untold.json --subset 200",
    "train untold": "train @untold --out @untold_model --hyper @untold.json",
    "predict untold": "predict @untold_model @untold_test --out @untold_p --variance",
    "evaluate untold": "evaluate @untold_p @untold_test",
}


@dataclass(frozen=True)
class World:
    """A table, options of the commands that every world runs, and commands of its own after these.

    The last `tests` rows are the test set, or a share of 0.3 that is drawn.
    """

    table: Callable[[], tuple[str, Array]]
    tests: int = 0
    ingest: str = ""
    tune: str = ""
    train: str = ""
    variance: str = "--variance"
    # The largest relative gap of variances, and how far the mean may be beyond its bound.
    gap: float = 0.2
    beyond: float = 1e-9
    own: dict[str, str] | None = None

    def commands(self) -> dict[str, str]:
        split = "--test-fraction 0.3 --test-out @test"
        return {
            "ingest": f"ingest @t.csv @train --target y {self.ingest} {'' if self.tests else split}",
            **({"ingest test": f"ingest @test.csv @test --target y {self.ingest}"} if self.tests else {}),
            "tune": f"tune @train --out @hyper {self.tune}",
            "train": f"train @train --hyper @hyper --out @model {self.train}",
            **self.predictions(),
            **(self.own or {}),
        }

    def predictions(self) -> dict[str, str]:
        return {
            "predict": f"predict @model @test --out @p {self.variance}",
            "predict latent": f"predict @model @test --out @l {self.variance} --latent",
            "evaluate": "evaluate @p @test",
            "evaluate latent": "evaluate @l @test",
        }


def badly_measured() -> tuple[str, Array]:
    """Half of the samples are measured badly."""
    rng = np.random.default_rng(6)
    X = rng.uniform(-2.0, 2.0, (400, 2))
    std = np.where(rng.random(400) < 0.5, 20.0, 0.0)
    y = 100.0 + 10.0 * np.sin(2.0 * X[:, 0]) + 5.0 * X[:, 1] + np.hypot(1.0, std) * rng.normal(size=400)
    return "a,b,y,s", np.column_stack([X, y, std])


def uneven() -> tuple[str, Array]:
    """Noise grows with the first feature, by a factor of 25 in deviation."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-2.0, 2.0, (420, 2))
    noise = np.exp(-1.5 + 0.8 * x[:, 0]) * rng.normal(size=420)
    return "a,b,y", np.column_stack([x, 40.0 + 7.0 * (np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + noise)])


def outlying(noisy: bool = True) -> tuple[str, Array]:
    """One sample in sixteen is an outlier."""
    rng = np.random.default_rng(11)
    x = rng.uniform(-2.0, 2.0, (420, 2))
    function = 7.0 * (np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2)
    noise = np.where(rng.random(420) < 0.06, rng.normal(0.0, 14.0, 420), rng.normal(0.0, 0.7, 420))
    return "a,b,y", np.column_stack([x, 40.0 + function + noisy * noise])


def steep() -> tuple[str, Array]:
    """A steep trend in two features, and tests beyond the samples."""
    rng, tables = np.random.default_rng(4), []
    for n, low, high in ((400, 0.0, 10.0), (90, 5.0, 20.0)):
        X = rng.uniform(low, high, (n, 2))
        y = 5.0 + 3.0 * X[:, 0] - 6.0 * X[:, 1] + 2.0 * np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1])
        tables.append(np.column_stack([X, y + 0.1 * rng.standard_normal(n)]))
    return "a,b,y", np.concatenate(tables)


WORLDS = {
    "plain": World(badly_measured, variance="--variance --variance-gap 0.01", gap=0.01),
    "known noise": World(
        badly_measured,
        ingest="--noise-std-column s",
        tune="--subset 200",
        train="--tol 1e-6",
        gap=0.03,
        own={
            "sparse": "sparse @train --out @s --hyper @hyper --basis-size 100",
            "predict sparse": "predict @s @test --out @sp --variance",
            "evaluate sparse": "evaluate @sp @test",
            "info": "info @train",
            "info of the model": "info @model",
            **UNTOLD,
            "plan": "plan @train --hyper @hyper --variance --test-samples 100",
        },
    ),
    "a noise model": World(
        uneven,
        tune="--noise-model auto",
        own={
            "evaluate noise-free": "evaluate @p @test --noise-free",
            "evaluate latent noise-free": "evaluate @l @test --noise-free",
        },
    ),
    "Student's t": World(
        outlying,
        tests=120,
        tune="--likelihood auto",
        beyond=1e-2,
        own={
            "tune gaussian": "tune @train --out @gaussian.json --likelihood gaussian",
            "train gaussian": "train @train --hyper @gaussian.json --out @gaussian",
            "predict gaussian": "predict @gaussian @test --out @gp --variance",
            "evaluate gaussian": "evaluate @gp @test",
        },
    ),
    STEEP: World(
        steep,
        tests=90,
        tune="--mean linear",
        train="--mean linear --tol 1e-8",
        gap=1.0,
        own={
            "train centred": "train @train --tune --out @centred --mean centred --tol 1e-8",
            "predict centred": "predict @centred @test --out @cp --variance",
            "evaluate centred": "evaluate @cp @test",
        },
    ),
}


class Ran(Shell):
    """A world in its folder, with the document of each of its commands."""

    def __init__(self, folder: Path, places: Places | None, world: World) -> None:
        super().__init__(folder, places)
        self.world = world
        lines = world.predictions() if places else world.commands()
        if not places:
            header, table = world.table()
            rows = len(table) - world.tests
            for name, part in (("t", table[:rows]), ("test", table[rows:])):
                np.savetxt(self[f"{name}.csv"], part, delimiter=",", header=header, comments="", fmt="%.17g")
        with pytest.MonkeyPatch.context() as patch:
            measure_little(patch)
            self.documents = {name: self.json(line) for name, line in lines.items()}


@pytest.fixture(scope="module")
def ran(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """The world of a name, run once; the plain one is that of `stores`."""

    @cache
    def of(name: str) -> Ran:
        return Ran(tmp_path_factory.mktemp("world"), stores if name == "plain" else None, WORLDS[name])

    return of


@dataclass(frozen=True)
class Dense:
    """The exact process at the test samples, in the targets' units, and the scale of these."""

    mean: Array
    latent: Array
    noise: Array
    truth: Array
    scale: float
    hyper: Hyperparameters


def dense(shell: Shell, mean: str = "centred") -> Dense:
    hyper, data = read_hyperparameters(shell["hyper"]), open_dataset(shell["train"])
    test = open_dataset(shell["test"]).as_seen_by(data.feature_names, data.target_names, data.standardisation)
    X, T, y = data.inputs(0, data.n_samples), test.inputs(0, test.n_samples), data.all_targets()[:, 0]
    scale, shift = float(data.standardisation.target_std[0]), float(data.standardisation.target_mean[0])
    K, k, law, t = hyper.kernel(X, X), hyper.kernel(T, X), hyper.noise_model, hyper.student_t

    def noise(rows: Array, known: Array | None) -> Array:
        if law is None:
            return np.full(len(rows), hyper.noise_variance) + (0.0 if known is None else known / scale**2)
        columns = rows if law.kernel is None else law.kernel(rows, np.array(law.basis))
        return np.asarray(np.clip(np.exp(law.offset + columns @ np.array(law.weights)), law.lowest, law.highest))

    at_samples = noise(X, data.all_sample_noise(standardised=False))
    at_tests = noise(T, open_dataset(shell["test"]).all_sample_noise(standardised=False))
    if t is not None:
        weights = np.ones(len(X))
        while True:
            at_samples = t.scale / weights
            off = y - K @ np.linalg.solve(K + np.diag(at_samples), y)
            found = (t.degrees + 1.0) / (t.degrees + off**2 / t.scale)
            if np.abs(found - weights).max() <= 0.01:
                break
            weights = found
        at_tests = np.full(len(T), t.scale * t.degrees / (t.degrees - 2.0))
    inverse = np.linalg.inv(K + np.diag(at_samples))
    means, latent = k @ inverse @ y, hyper.kernel.diagonal(T) - np.einsum("ij,ij->i", k @ inverse, k)
    if mean == "linear":
        H, h = np.column_stack([np.ones(len(X)), X]), np.column_stack([np.ones(len(T)), T])
        G, R = H.T @ inverse @ H, h - k @ inverse @ H
        beta = np.linalg.solve(G, H.T @ inverse @ y)
        means = h @ beta + k @ inverse @ (y - H @ beta)
        latent = latent + np.einsum("ij,ij->i", R, np.linalg.solve(G, R.T).T)
    truth = open_dataset(shell["test"]).all_targets(standardised=False)[:, 0]
    return Dense(means * scale + shift, latent * scale**2, at_tests * scale**2, truth, scale, hyper)


@pytest.fixture(scope="module")
def exact(ran: Callable[[str], Ran]) -> Callable[[str], Dense]:
    return cache(lambda name: dense(ran(name), "linear" if name == STEEP else "centred"))


@pytest.mark.parametrize("name", WORLDS)
def test_predictions_are_those_of_the_dense_process(
    name: str, ran: Callable[[str], Ran], exact: Callable[[str], Dense]
) -> None:
    world, found = ran(name), exact(name)
    tolerance = 1e-4 if name == "Student's t" else 1e-6 if name == "a noise model" else 1e-9
    for out, variance in (("p", found.latent + found.noise), ("l", found.latent)):
        stored = open_prediction(world[out])
        off, bound = np.abs(stored.read("mean")[:, 0] - found.mean), stored.read("mean_error_bound")[:, 0]
        assert (off <= bound + world.world.beyond).all()
        assert name != "Student's t" or off.max() <= 1e-2
        lower, upper, middle = (stored.read(f"variance{end}")[:, 0] for end in ("_lower", "_upper", ""))
        assert (lower <= variance * (1 + tolerance)).all()
        assert (variance <= upper * (1 + tolerance)).all()
        assert (upper - lower <= world.world.gap * upper).all()
        assert name != "a noise model" or out == "l" or (upper / lower).max() < 1.2
        if name == "plain":
            assert (middle == lower + 0.5 * (upper - lower)).all()
            assert stored.attributes["noise_variance"] == pytest.approx([found.noise[0]])
            told, gap = world.documents["predict" if out == "p" else "predict latent"], (upper - lower) / upper
            figures = told["variance"]
            assert (figures["gap"], figures["latent"], figures["met"], figures["unmet"]) == (0.01, out == "l", 200, 0)
            assert figures["gap_max"] == pytest.approx(gap.max())
            assert figures["gap_mean"] == pytest.approx(gap.mean())
            assert told["warnings"] == []
        if name == "known noise":
            assert set(np.round(stored.read("noise")[:, 0], 9)) == {0.0, 400.0}
            assert read_manifest(stored.url, "prediction")["version"] == 5
            assert read_manifest(str(world["model"]), "model")["version"] == 3
        if name == "a noise model":
            common = stored.attributes["noise_variance"][0]
            np.testing.assert_allclose(common + stored.read("noise")[:, 0], found.noise, rtol=1e-9)
            assert found.noise.max() > 100.0 * found.noise.min()
        if name == STEEP:
            assert bound.max() < 0.01


@pytest.mark.parametrize("name", WORLDS)
def test_evaluations_are_of_observations_with_their_own_noise(
    name: str, ran: Callable[[str], Ran], exact: Callable[[str], Dense]
) -> None:
    documents, found = ran(name).documents, exact(name)
    if found.hyper.student_t is None:
        total = np.sqrt(found.latent + found.noise)
        density = stats.norm(found.mean, total).logpdf(found.truth)
    else:
        # Densities are those of t around the function's normal distribution.
        scaled = (found.truth - found.mean) / found.scale, found.latent / found.scale**2
        density = found.hyper.student_t.log_density(*scaled) - np.log(found.scale)
    for command in ("evaluate", "evaluate latent", "evaluate sparse"):
        if (told := documents.get(command)) is not None:
            assert told["nlpd_raw"] == pytest.approx(-density.mean(), abs=0.02)
            assert told["nlpd"] == pytest.approx(-density.mean() - np.log(found.scale), abs=0.02)
            assert told["rmse_raw"] == pytest.approx(np.sqrt(np.mean((found.truth - found.mean) ** 2)), rel=0.01)
            assert (0.88 if name == "known noise" else 0.85) < told["coverage_95"] <= 1.0


def test_verdicts_find_what_a_model_lacks(ran: Callable[[str], Ran]) -> None:
    """Errors are as large as each sample's own variance says; without it they have heavy tails."""
    known, law, t = (ran(name).documents for name in ("known noise", "a noise model", "Student's t"))
    assert known["evaluate"]["verdict"] == []
    assert known["evaluate untold"]["verdict"][0]["kind"] == "heavy tails"
    assert known["evaluate"]["nlpd_raw"] < known["evaluate untold"]["nlpd_raw"] - 1.0
    assert not {finding["kind"] for finding in law["evaluate"]["verdict"]} & {"noise and input", "noise and mean"}
    (advice,) = [each["advice"] for each in t["evaluate gaussian"]["verdict"] if each["kind"] == "heavy tails"]
    assert "likelihood" in advice
    assert "heavy tails" not in {finding["kind"] for finding in t["evaluate"]["verdict"]}


def test_noise_free_evaluations_leave_the_noise_out_sample_by_sample(ran: Callable[[str], Ran]) -> None:
    found = ran("a noise model").documents
    without = found["evaluate noise-free"]["coverage_95"]
    assert without == pytest.approx(found["evaluate latent noise-free"]["coverage_95"], abs=0.05)
    assert without < found["evaluate"]["coverage_95"]


@pytest.mark.parametrize(
    ("name", "kinds", "chosen"),
    [
        ("a noise model", ["none", "linear", "gp"], "linear"),
        ("Student's t", ["gaussian", "student-t"], "student-t"),
    ],
)
def test_tuning_tells_what_it_chose(ran: Callable[[str], Ran], name: str, kinds: list[str], chosen: str) -> None:
    world = ran(name)
    tuned, stored = world.documents["tune"], read_hyperparameters(world["hyper"])
    comparison = tuned["noise_comparison"]
    assert comparison["kind"] == chosen
    scores = {row["kind"]: row for row in comparison["kinds"]}
    assert list(scores) == kinds
    assert scores[chosen]["gain"] > 2.0 * scores[chosen]["standard_error"] > 0.0
    if chosen == "linear":
        assert stored.noise_model == from_json(NoiseModel, tuned["noise_model"])
        assert tuned["noise_model"]["kind"] == chosen
        printed = " ".join(world.run(f"{world.world.commands()['tune']} --resume").stdout.split())
        assert "noise model linear" in printed
        assert "Noise on" in printed
        assert "linear *" in printed
    else:
        t = stored.student_t
        assert StudentT.held(tuned["student_t"]) == t
        assert tuned["noise_variance"] == t.variance
        assert t.degrees < 6.0


def test_the_model_keeps_its_noise(ran: Callable[[str], Ran]) -> None:
    known, law, t = (ran(name) for name in ("known noise", "a noise model", "Student's t"))
    told, scale = known.documents["info of the model"]["sample_noise"], dense(known).scale
    assert known.documents["ingest"]["noise"] == known.documents["info"]["noise"] == "s"
    assert told["least"] == 0.0
    assert told["most"] == pytest.approx(400.0 / scale**2)
    # What is tuned is the common part, of variance one in the target's units.
    assert 0.5 < known.documents["tune"]["noise_variance"] * scale**2 < 2.0
    model, data = open_model(law["model"]), open_dataset(law["train"])
    noise = from_json(NoiseModel, law.documents["tune"]["noise_model"])
    assert model.noise_model == law.documents["tune"]["noise_model"]
    assert model.noise_variance == noise.lowest
    np.testing.assert_array_equal(model.sample_noise, noise.beyond_least(data.inputs(0, data.n_samples)))
    model = open_model(t["model"])
    student = StudentT.held(model.summary["student_t"])
    assert model.sample_noise is not None
    assert model.noise_variance == student.least
    assert float(student.weights(model.sample_noise).min()) == pytest.approx(model.summary["weights"]["least"])


def test_outliers_pull_the_mean_less_and_densities_are_better(ran: Callable[[str], Ran], tmp_path: Path) -> None:
    world, function = ran("Student's t"), outlying(noisy=False)[1][300:, 2]
    student, gaussian = world.documents["evaluate"], world.documents["evaluate gaussian"]
    means = [open_prediction(world[out]).read("mean")[:, 0] for out in ("p", "gp")]
    off = [float(np.sqrt(np.mean((mean - function) ** 2))) for mean in means]
    assert off[0] < 0.7 * off[1]
    assert student["nlpd"] < gaussian["nlpd"] - 0.3
    assert student["student_t"]["degrees"] < 6.0
    low, high = student["coverage_95_band"]
    assert low - 0.02 <= student["coverage_95"] <= high + 0.02
    assert world.documents["train"]["weights"]["turns"] > 2
    # A table has intervals of t.
    world.json("export @p", tmp_path / "out.csv")
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    assert (0.5 * (table["upper_95"] - table["lower_95"]) < 1.9 * table["std"]).all()
    truth = dense(world).truth
    inside = np.mean((table["lower_95"] <= truth) & (truth <= table["upper_95"]))
    assert inside == pytest.approx(student["coverage_95"], abs=1e-12)


def test_a_mean_is_shown_and_followed_beyond_the_data(ran: Callable[[str], Ran]) -> None:
    world = ran(STEEP)
    linear, centred = world.documents["evaluate"], world.documents["evaluate centred"]
    assert linear["rmse_raw"] < 2.0
    assert centred["rmse_raw"] > 10.0
    assert linear["coverage_95"] > 0.9
    slopes = world.documents["train"]["mean"]["coefficients"]["y"]
    for name, value in (("a", 3.0), ("b", -6.0)):
        assert abs(slopes[name]["value"] - value) < 4.0 * slopes[name]["standard_error"] < 1.0
    world.json("train @train --tune --out @tuned --mean linear --tol 1e-8")
    assert open_model(world["tuned"]).alpha.tobytes() == open_model(world["model"]).alpha.tobytes()
    shown = world.run("train @train --hyper @hyper --out @again --overwrite --mean linear").stdout
    assert "coefficients of the mean" in shown
    assert "b -5.9" in shown or "b -6" in shown


@pytest.mark.parametrize("mean", ["quadratic", "-3.5"])
def test_other_means_are_tuned_trained_resumed_and_evaluated(ran: Callable[[str], Ran], mean: str) -> None:
    world, name = ran(STEEP), f"mean{mean}"
    world.json(f"tune @train --out @{name}.json --mean {mean} --subset 100")
    line = f"train @train --hyper @{name}.json --out @{name} --tol 1e-6 --mean"
    document = world.json(f"{line} {mean}")
    world.json(f"predict @{name} @test --out @{name}.p --variance")
    assert world.json(f"evaluate @{name}.p @test")["coverage_95"] > 0.5
    assert world.json(f"{line} {mean} --resume")["resumed"]
    for other in ("-3.4", "linear"):
        world.refuses(f"{line} {other} --resume", "another mean")
    if mean == "quadratic":
        assert {"a^2", "a*b", "b^2"} < set(document["mean"]["coefficients"]["y"])
    else:
        assert document["given_mean"] == -3.5
        # Far from all samples a model of short length scales predicts its mean.
        assert open_model(world[name]).standardisation.target_mean.tolist() == [-3.5]


def test_warm_starts_know_noise_and_mean(ran: Callable[[str], Ran]) -> None:
    known, mean = ran("known noise"), ran(STEEP)
    line = "train @train --hyper @hyper --tol 1e-6 --solver gbcd --overwrite"
    assert known.json(f"{line} --out @a --warm-start @model")["column_passes"] < 1.5
    assert known.json(f"{line} --out @b --warm-start @s")["converged"]
    first, second = (open_model(known[name]).alpha for name in "ab")
    np.testing.assert_allclose(first, second, atol=1e-3 * np.abs(first).max())
    line = "train @train --hyper @hyper --out @warm --mean linear --warm-start @model --solver gbcd --overwrite"
    assert mean.json(line)["iterations"] == 0
    assert open_model(mean["warm"]).trend is not None


def test_a_finished_run_is_known_and_that_of_another_noise_or_mean_is_not(ran: Callable[[str], Ran]) -> None:
    law, mean = ran("a noise model"), ran(STEEP)
    line = "train @train --hyper @hyper --out @model --tol 1e-8 --resume --mean"
    assert mean.json(f"{line} linear")["resumed"]
    mean.refuses(f"{line} constant", "another mean")
    assert "is already complete" in law.told("train @train --out @model --hyper @hyper --resume")
    hyper = read_hyperparameters(law["hyper"])
    weights = (hyper.noise_model.weights[0] + 0.01, hyper.noise_model.weights[1])
    other = replace(hyper, noise_model=replace(hyper.noise_model, weights=weights))
    write_hyperparameters(law["other.json"], other)
    law.refuses("train @train --out @model --hyper @other.json --resume", "exists")
    found = law.json("train @train --out @other --hyper @other.json --overwrite")
    assert found["objective"] != law.documents["train"]["objective"]


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("known noise", "pursue @train --out @w --overwrite", "known noise 's' is not used by a linear regression"),
        (
            "a noise model",
            "sparse @train --hyper @hyper --out @w --overwrite --basis-size 20",
            "assumes normal noise with the same variance everywhere",
        ),
        ("Student's t", "sparse @train --hyper @hyper --out @w --overwrite --basis-size 20", "Student's t in"),
    ],
)
def test_what_takes_one_normal_noise_for_all_warns(ran: Callable[[str], Ran], name: str, line: str, words: str) -> None:
    assert any(words in warning for warning in ran(name).json(line)["warnings"])


BOUND = ("one noise variance for all", "'s'")


@pytest.mark.parametrize(
    ("name", "line", "words", "code"),
    [
        ("known noise", "tune @train --out @no --objective bound", BOUND, 3),
        ("known noise", "tune @train --out @no --objective fitc", BOUND, 3),
        # Also a basis of none of the samples, so that its store has no noise of theirs.
        (
            "known noise",
            "predict @means @test --out @no --variance --variance-basis 9",
            ("a noise of its own for each sample",),
            3,
        ),
        (
            "a noise model",
            "train @train --hyper @broken.json --out @no",
            ("broken.json", "least variance must be positive"),
            3,
        ),
        (
            "Student's t",
            "train @train --hyper @hyper --out @no --solver tiled-cholesky",
            ("solves with changing weights",),
            2,
        ),
    ],
)
def test_what_a_noise_does_not_go_with_is_refused(
    ran: Callable[[str], Ran], name: str, line: str, words: tuple[str, ...], code: int
) -> None:
    world = ran(name)
    if "@means" in line:
        world.json("sparse @train --out @means --hyper @hyper --basis-size 20 --basis k-means --overwrite")
        assert world.json("info @means")["noise_by_sample"]
    if "@broken" in line:
        document = json.loads(world["hyper"].read_text())
        document["noise_model"]["lowest"] = -1.0
        world["broken.json"].write_text(json.dumps(document))
    before = world.names
    world.refuses(line, *words, code=code)
    assert world.names == before


def test_labels_have_no_such_noise(shell: Shell) -> None:
    line = "tune @two --out @h.json --likelihood student-t"
    shell.refuses(line, "is a label", "leave out --noise-model and --likelihood student-t")


def test_a_fit_from_the_table_takes_the_column(ran: Callable[[str], Ran], tmp_path: Path) -> None:
    line = "fit @t.csv --target y --noise-std-column s --kernel rbf --time 20s --out"
    fitted = ran("known noise").json(line, tmp_path / "fit")
    assert open_dataset(tmp_path / "fit" / "train.zarr").noise_name == "s"
    assert fitted["evaluation"]["coverage_95"] > 0.85
    assert any("--noise-std-column s" in line for line in fitted["commands"])


def test_noise_that_is_the_same_everywhere_changes_nothing(shell: Shell) -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(-2.0, 2.0, (150, 2))
    y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=150)
    np.savetxt(shell["t.csv"], np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
    shell.json("ingest @t.csv @even --target y")
    plain, compared = (
        shell.json(f"tune @even --out @{model}.json --noise-model {model}") for model in ("none", "auto")
    )
    assert compared["noise_comparison"]["kind"] == "none"
    assert "noise_model" not in compared
    assert "noise_comparison" not in plain
    assert (compared["kernel"], compared["noise_variance"]) == (plain["kernel"], plain["noise_variance"])
