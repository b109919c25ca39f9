"""Labels and predicted classes on S3 (moto's server): names, regions and the coordinate of the classes."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest
import xarray as xr

from dkgp.data import PredictionWriter, ingest, open_dataset, open_prediction
from dkgp.errors import StorageError
from tests.s3 import S3Server, use_s3


@pytest.mark.long
def test_labels_and_predicted_classes(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    use_s3(monkeypatch, server)
    names, codes = ("blau", "größer, „viel“", "rot"), np.arange(60) % 3
    source, train, test = (server.url(f"classes/{name}") for name in ("d.csv", "train.zarr", "test.zarr"))
    lines = ["a,kind", *(f'{a!r},"{names[code]}"' for a, code in zip(rng.normal(size=60).tolist(), codes, strict=True))]
    with fsspec.open(source, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    ingest(source, train, labels="kind", test_fraction=0.2, test_out=test)
    assert open_dataset(train).classes == open_dataset(test).classes == names
    assert open_dataset(test).class_counts == (4, 4, 4)

    url = server.url("classes/p.zarr")
    probability = rng.dirichlet(np.ones(3), 60)
    values = {
        "decision": rng.normal(size=(60, 3)),
        "decision_error_bound": np.ones((60, 3)),
        "probability": probability,
        "class": codes,
        "certified": codes > 0,
    }
    first = PredictionWriter.create(url, 60, ["kind"], tuple(values), 20, classes=names)
    first.write(0, **{name: block[:20] for name, block in values.items()})
    resumed = PredictionWriter.open_to_resume(url)
    with pytest.raises(StorageError, match="taken over"):
        first.write(20, **{name: block[20:40] for name, block in values.items()})
    for start, stop in resumed.pending_regions():
        resumed.write(start, **{name: block[start:stop] for name, block in values.items()})
    resumed.commit()
    found = open_prediction(url)
    np.testing.assert_array_equal(found.read("probability"), probability)
    np.testing.assert_array_equal(found.labels(), codes)
    with xr.open_zarr(url) as shown:
        assert shown["class_name"].values.tolist() == list(names)
