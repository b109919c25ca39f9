"""A kernel that dkgp does not have, in one file of its own, through all that is done with kernels."""

from __future__ import annotations

import importlib
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.tables import tables
from dkgp.data import open_model
from dkgp.errors import InputError
from dkgp.kernels import TileEvaluator, base, kernel_from_json, kernel_names, parse_kernel, program
from dkgp.models.prediction.pathwise import MOST_JOINT_SAMPLES, PosteriorFunctions
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import ArrayInputs, ProductError
from tests.models.kernel_world import NOISE, D, Fitted, fit
from tests.plugin import dkgp, install

GNEITING = '''
"""Wendland's kernel of compact support, with a real power (Gneiting 2002, equation 3.7 with kappa = 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, register_kernel
from dkgp.kernels.distance import DistanceKernel
from dkgp.kernels.program import Profile
from dkgp.kernels.vector_math import exp2, fma, log2_1p


def _entries(values, parameters, floor):
    convert = values.dtype.type
    zero, one, tiny, power = convert(0.0), convert(1.0), convert(1e-30), convert(parameters[0])
    for i in range(len(values)):
        r = np.sqrt(max(-values[i], zero))
        # (1 - r)^p = (1 + r / (1 - r))^-p
        inside = exp2(-power * log2_1p(r / max(one - r, tiny)), floor)
        values[i] = fma(power, r, one) * inside if r < one else zero


def _value(s: float, power: float) -> Any:
    r = min(np.sqrt(s), 1.0)
    return (1.0 - r) ** power * (1.0 + power * r)


def _steepest(r: float, power: float) -> Any:
    peak = min(max(r, 1.0 / power), 1.0)
    return power * (power + 1.0) * peak * (1.0 - peak) ** (power - 1.0)


def _bulge(r: float, power: float) -> Any:
    peak = min(max(r, 2.0 / (power + 1.0)), 1.0)
    return 0.5 * power * (power + 1.0) * peak * peak * (1.0 - peak) ** (power - 1.0)


def _slope_at_zero(power: float) -> float:
    return 0.5 * power * (power + 1.0)


PROFILE = Profile(
    "gneiting", _entries, rounding=16.0, steepest=_steepest, bulge=_bulge, value=_value,
    slope_at_zero=_slope_at_zero, parameters=1,
)


@register_kernel
@dataclass(frozen=True)
class Gneiting(DistanceKernel):
    """k(x, x') = v (1 - r)^p (1 + p r) for r < 1, and 0 beyond; r^2 = s, p >= (d + 5) / 2."""

    power: float = 5.0

    type_name: ClassVar[str] = "gneiting"
    compiled: ClassVar[Profile] = PROFILE
    shapes = {"power": (4.0, 20.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2.0 * self.power < self.n_features + 5.0:
            raise InputError(f"power must be at least {(self.n_features + 5.0) / 2.0}; got {self.power}")

    def profile(self, s: FloatArray) -> FloatArray:
        r = np.minimum(np.sqrt(s), 1.0)
        return (1.0 - r) ** self.power * (1.0 + self.power * r)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        r = np.minimum(np.sqrt(s), 1.0)
        return -_slope_at_zero(self.power) * (1.0 - r) ** (self.power - 1.0)

    def _shape_gradients(self, s: FloatArray, f: FloatArray, weights: FloatArray) -> FloatArray:
        r = np.minimum(np.sqrt(s), 1.0 - 1e-15)
        inner = np.log1p(-r) * f + (1.0 - r) ** self.power * r
        return np.array([self.power * np.vdot(weights, inner)])
'''
TEXT = "gneiting(length_scale=2, power=5.5) + 0.2 * linear"


@pytest.fixture(scope="module", autouse=True)
def gneiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "gneiting_of_a_test.py").write_text(GNEITING)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("gneiting_of_a_test")
    finally:
        sys.path.remove(str(folder))
        # Tests of other files may run in between: then it is registered again.
        sys.modules.pop("gneiting_of_a_test", None)
        base._REGISTRY.pop("gneiting")
        program.PROFILES.pop("gneiting")


def k(kernel: Any, x: list[float], z: list[float]) -> float:
    r = math.sqrt(sum(g * (a - b) ** 2 for g, a, b in zip(kernel.feature_gamma, x, z, strict=True)))
    return kernel.variance * (1.0 - r) ** kernel.power * (1.0 + kernel.power * r) if r < 1.0 else 0.0


def test_it_has_a_name_settings_and_a_description(gneiting: Any) -> None:
    assert "gneiting" in kernel_names()
    kernel = parse_kernel("gneiting[0, 2](length_scale=[1, 2], power=6, variance=3)", 3)
    assert kernel == gneiting.Gneiting((0.5, 0.125), 3.0, power=6.0).on((0, 2), 3)
    assert gneiting.Gneiting.start({}, 3) == gneiting.Gneiting((1 / 6,) * 3)
    document = json.loads(json.dumps(kernel.to_json()))
    assert document["kernel"] == {"type": "gneiting", "variance": 3.0, "gamma": [0.5, 0.125], "power": 6.0}
    assert kernel_from_json(document) == kernel
    with pytest.raises(InputError, match="unknown setting alpha; expected one of isotropic, length_scale, power"):
        parse_kernel("gneiting(alpha=2)", 3)
    with pytest.raises(InputError, match="power must be finite and positive; got -1"):
        gneiting.Gneiting((0.5,), power=-1.0)
    with pytest.raises(InputError, match=r"power must be at least 4\.0; got 3\.0"):
        kernel_from_json({"type": "gneiting", "gamma": [1.0, 1.0, 1.0], "power": 3.0})


@pytest.mark.covering
@pytest.mark.parametrize("expanded", [None, True])
def test_tiles_are_within_the_declared_error_of_a_plain_loop(
    gneiting: Any, precision: Any, expanded: bool | None, rng: np.random.Generator
) -> None:
    X, Z = rng.standard_normal((90, 3)), rng.standard_normal((70, 3))
    for kernel in (gneiting.Gneiting((0.2, 0.05, 0.3), 1.7, power=4.0), gneiting.Gneiting((0.1, 0.0, 0.2), power=18.3)):
        exact = np.array([[k(kernel, x, z) for z in Z.tolist()] for x in X.tolist()])
        assert (exact == 0.0).any()
        np.testing.assert_allclose(kernel(X, Z), exact, rtol=1e-12, atol=1e-14)
        evaluator = TileEvaluator(kernel, precision, expanded=expanded)
        A, B = evaluator.prepare(X), evaluator.prepare(Z)
        allowed = evaluator.row_errors(X)[:, None] + evaluator.row_errors(Z)
        off = np.abs(evaluator.tile(A, B) - exact)
        assert (off <= np.finfo(evaluator.dtype).eps * kernel.variance * allowed).all()
        assert expanded or allowed.max() < 150.0
        W = rng.standard_normal((70, 2))
        np.testing.assert_allclose(evaluator.matmat(A, B, W), exact @ W, atol=1e-4 if precision == "single" else 1e-12)


def test_its_slopes_are_no_less_than_differences_of_its_value(gneiting: Any) -> None:
    profile, step = gneiting.PROFILE, 1e-6
    for power in (4.0, 7.3, 20.0):
        r = np.linspace(1e-3, 1.2, 500)
        value = np.array([profile.value((distance + step) ** 2, power) for distance in r])
        before = np.array([profile.value((distance - step) ** 2, power) for distance in r])
        slope = (before - value) / (2.0 * step)
        assert (slope >= -1e-8).all()
        for index in range(0, 500, 50):
            steepest, bulge = profile.steepest(r[index], power), profile.bulge(r[index], power)
            assert steepest == pytest.approx(slope[index:].max(), rel=1e-3, abs=1e-7)
            assert bulge == pytest.approx((0.5 * r * slope)[index:].max(), rel=1e-3, abs=1e-7)


def test_derivatives_are_those_of_differences(gneiting: Any, rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 3))
    kernel = parse_kernel("gneiting(length_scale=[1, 2, 1.5], power=6)", 3)
    assert [parameter.name for parameter in kernel.parameters()][-2:] == ["variance", "power"]
    y = np.sin(2.0 * X[:, :1])
    family = family_of(kernel, X, True, ("a", "b", "c"))
    likelihood, at = LogMarginalLikelihood(family, y), np.append(family.initial(), math.log(0.1))
    found = likelihood(at)
    assert found is not None
    for index in range(len(at)):
        step = np.zeros(len(at))
        step[index] = 1e-5
        above, below = likelihood(at + step), likelihood(at - step)
        assert above is not None
        assert below is not None
        assert found[1][index] == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-5, abs=1e-6)


def test_no_bound_on_its_products_is_known(gneiting: Any, rng: np.random.Generator) -> None:
    X, V = rng.uniform(-3.0, 3.0, (1500, 2)), rng.standard_normal((1500, 1))
    kernel, executor = gneiting.Gneiting((4.0, 6.0), 1.3), LocalExecutor(1)
    with pytest.raises(InputError, match="need a bound over complex distances, and none is known"):
        ProductError(1e-6).operator(kernel, NOISE, ArrayInputs(X), executor)
    # With auto every entry is evaluated.
    with ProductError("auto").operator(kernel, NOISE, ArrayInputs(X), executor, tolerance=1e-4) as operator:
        assert np.abs(operator.matmat(V) - kernel(X, X) @ V - NOISE * V).max() <= 1e-11
        assert "none is known" in operator.products["reason"]


@pytest.fixture(scope="module")
def fitted(gneiting: Any, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    with single_threaded_blas():
        return fit(TEXT, tmp_path_factory.mktemp("fitted"), LocalExecutor(1))


def test_means_and_variances_lie_within_what_is_proven(fitted: Fitted) -> None:
    values, summary = fitted.predicted("gneiting", LocalExecutor(1), VarianceSettings(gap=0.02, rank=60))
    np.testing.assert_allclose(fitted.model.alpha, fitted.alpha, rtol=0.0, atol=1e-9 * np.abs(fitted.alpha).max())
    assert (np.abs(values["mean"] - fitted.mean[:, 0]) <= values["mean_error_bound"] + 1e-11).all()
    exact, slack = fitted.latent + NOISE, 1e-11 * fitted.kernel.diagonal(fitted.T)
    assert (values["variance_lower"] <= exact + slack).all()
    assert (values["variance_upper"] >= exact - slack).all()
    assert summary.variance is not None
    assert summary.variance["unmet"] == 0


def test_functions_are_drawn_jointly_and_no_more_than_can_be(fitted: Fitted) -> None:
    functions = PosteriorFunctions(fitted.model, fitted.model.url, count=400, seed=1)
    # No spectrum is declared.
    assert not functions.is_function
    scale = float(fitted.model.standardisation.target_std[0])
    values = (functions(fitted.T)[:, 0] - fitted.model.standardisation.target_mean[0]) / scale
    sigma = np.sqrt(fitted.latent)
    assert (np.abs(values.mean(axis=1) - fitted.mean[:, 0]) <= 5.0 * sigma / 20.0 + 1e-6).all()
    with pytest.raises(InputError, match=r"functions of this kernel \(sum of gneiting, scaled\) cannot be drawn"):
        functions(np.zeros((MOST_JOINT_SAMPLES, D)))


def test_the_command_line_tunes_trains_predicts_and_shows_it(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X = rng.uniform(-2.0, 2.0, (240, 3))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + 0.05 * rng.standard_normal(240)
    np.savetxt("a.csv", np.column_stack([X, y]), delimiter=",", header="lat,lon,day,y", comments="")

    def run(*arguments: str) -> Any:
        with pytest.raises(SystemExit, match="0"):
            main.main(args=[*arguments, "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    run("ingest", "a.csv", "a.zarr", "--target", "y", "--test-fraction", "0.2", "--test-out", "t.zarr")
    tuned = run("tune", "a.zarr", "--out", "a.json", "--kernel", "gneiting(length_scale=2)", "--subset", "150")
    started, found = parse_kernel("gneiting(length_scale=2)", 3), kernel_from_json(tuned["kernel"])
    assert found.type_name == "gneiting"
    assert all(
        one.value != other.value
        for one, other in zip(found.parameters(), started.parameters(), strict=True)
        if one.name != "variance"
    )
    run("train", "a.zarr", "--hyper", "a.json", "--out", "m.zarr")
    run("predict", "m.zarr", "t.zarr", "--out", "p.zarr", "--variance")
    scores = run("evaluate", "p.zarr", "t.zarr")
    console = Console(width=160, record=True, file=io.StringIO())
    for table in tables(run("info", "a.json")):
        console.print(table)
    shown = console.export_text()
    assert "gneiting: variance 1, gamma " in shown
    assert f"power {found.parameters()[-1].value:.4g}" in shown
    assert open_model("m.zarr").kernel == tuned["kernel"]
    assert "rmse" in json.dumps(scores)


@pytest.mark.portable
def test_an_installed_package_brings_a_kernel(tmp_path: Path) -> None:
    environment = install(tmp_path, "dkgp.kernels", "gneiting_kernel", GNEITING)
    table = np.random.default_rng(3).random((60, 3))
    np.savetxt(tmp_path / "data.csv", table, delimiter=",", header="a,b,y", comments="")
    ingested, tuned, unknown = dkgp(
        environment,
        tmp_path,
        "ingest data.csv train.zarr --target y",
        "tune train.zarr --out hyper.json --kernel gneiting --json",
        "tune train.zarr --out other.json --kernel gneitung",
    )
    assert (ingested.exit_code, tuned.exit_code) == (0, 0), tuned.stderr
    assert json.loads((tmp_path / "hyper.json").read_text())["kernel"]["type"] == "gneiting"
    assert unknown.exit_code != 0
    assert "gneiting" in unknown.stderr
