"""Pictures of commands are rendered once a kind: rendering takes a tenth of the time of tests of the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_RENDERED: dict[tuple[object, ...], bytes] = {}


@pytest.fixture(scope="module", autouse=True)
def pictures_are_rendered_once() -> Iterator[None]:
    """Render one picture of each plotting function, format and set of texts without numbers; repeat its bytes later.

    All artists are made each time. Tests of the pictures themselves do without this fixture.
    """
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    render = Figure.savefig

    def savefig(figure: Figure, path: str, **options: Any) -> None:
        # `drawn` calls this as its context ends, in the function that plots.
        plot = sys._getframe(3).f_code
        texts = {re.sub(r"[\d.,+-]+", "", artist.get_text()) for artist in figure.findobj(Text)}  # type: ignore[attr-defined]
        kind = (plot, options["format"], len(figure.axes), frozenset(texts))
        if kind in _RENDERED:
            Path(path).write_bytes(_RENDERED[kind])
        else:
            render(figure, path, **options)
            _RENDERED[kind] = Path(path).read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield
