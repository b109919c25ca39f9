"""HDF5 files (NetCDF-4), checked object by object before a value is read.

An HDF5 file may name other files: raw data of a dataset, sources of a virtual dataset, targets of external links. The
HDF5 library opens those by itself, so that no limit on folders holds there. A file with such a name is refused.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from dkgp.data.remote.storage import is_local, open_object, shown
from dkgp.data.remote.zarr_metadata import MOST_CHUNK_BYTES, MOST_DOCUMENT_BYTES
from dkgp.errors import InputError

_OPEN_FILES = Path("/dev/fd")
# Groups, variables and named types of one file. Each stays open, which takes about 10 KB.
MOST_OBJECTS = 20_000
_DIMENSIONS = b"DIMENSION_LIST"
# By their registered numbers: deflate, shuffle, Fletcher-32, szip, n-bit, scale-offset; bzip2, LZF, Blosc, LZ4,
# bitshuffle, ZFP, Zstandard, Blosc 2. The library searches a folder of plug-ins for any other number.
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 307, 32000, 32001, 32004, 32008, 32013, 32015, 32026})


def reopened(file: BinaryIO, url: str) -> Any:
    """Return a name or object by which a C library reads the open `file`, whatever its address leads to by now."""
    place = _OPEN_FILES / str(file.fileno()) if is_local(url) else None
    return str(place) if place is not None and place.exists() else file


class CheckedFile:
    """An HDF5 file without references to other files; `h5` is the `h5py.File` to read from.

    The checked objects stay open until the file is closed. HDF5 shares the description of an open object with everyone
    who opens it again, so that a change of the file after the check has no effect on where its values come from.

    Raises `InputError` for a file that refers to other files, uses an unknown filter, or promises more objects,
    attributes or bytes in a chunk than are read.
    """

    def __init__(self, url: str) -> None:
        import h5py

        with ExitStack() as stack:
            file = stack.enter_context(open_object(url))
            self.h5 = stack.enter_context(h5py.File(reopened(file, url), "r"))
            self._objects = _Walk(self.h5, shown(url)).objects
            self._closing = stack.pop_all()

    def __enter__(self) -> CheckedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._objects = []
        self._closing.close()


class _Walk:
    """A walk over all objects that the links of a file reach; `objects` are those, open."""

    def __init__(self, root: Any, url: str) -> None:
        from h5py import h5d, h5g, h5o

        self._url = url
        self._attribute_bytes = 0
        self.objects: list[Any] = []
        seen: set[int] = set()
        waiting: list[tuple[Any, bytes, str]] = [(root.id, b"/", "")]
        while waiting:
            group, link, path = waiting.pop()
            name = f"{path}/{link.decode(errors='replace')}" if path or link != b"/" else ""
            node = h5o.open(group, link)
            address = h5o.get_info(node).addr
            if address in seen:
                continue
            seen.add(address)
            self.objects.append(node)
            self._check_attributes(node, name)
            if isinstance(node, h5d.DatasetID):
                self._check_dataset(node, name)
            elif isinstance(node, h5g.GroupID):
                waiting += [(node, member, name) for member in self._members(node, name)]
            if len(self.objects) + len(waiting) > MOST_OBJECTS:
                raise InputError(
                    f"'{url}' holds more than {MOST_OBJECTS:,} groups and variables; no more are read. Save the "
                    "columns as one matrix 'X' (sample, feature)."
                )
        self._check_dimensions(root, seen)

    def _members(self, group: Any, name: str) -> list[bytes]:
        """Return the names of a group's objects, without soft links: those lead to a name within this file."""
        from h5py import h5l

        links: list[tuple[bytes, int]] = []

        def add(link: bytes, info: Any) -> bool:
            links.append((link, info.type))
            return len(links) > MOST_OBJECTS

        # An error that is raised in `add` does not arrive here.
        group.links.iterate(add, info=True)
        for link, kind in links:
            if kind not in (h5l.TYPE_HARD, h5l.TYPE_SOFT):
                self._refuse(f"the link '{name}/{link.decode(errors='replace')}' leads to another file")
        return [link for link, kind in links if kind == h5l.TYPE_HARD]

    def _check_dataset(self, dataset: Any, name: str) -> None:
        from h5py import h5d

        layout = dataset.get_create_plist()
        if layout.get_external_count():
            self._refuse(f"the values of the variable '{name}' lie in external files")
        if layout.get_layout() == h5d.VIRTUAL:
            self._refuse(f"the variable '{name}' is a virtual dataset, made of parts of other files")
        if layout.get_layout() != h5d.CHUNKED:
            return
        chunk_bytes = math.prod(layout.get_chunk()) * dataset.get_type().get_size()
        if chunk_bytes > MOST_CHUNK_BYTES:
            raise InputError(
                f"A chunk of the variable '{name}' of '{self._url}' takes {chunk_bytes:,} bytes; at most "
                f"{MOST_CHUNK_BYTES:,} are read at once. Write the variable again with smaller chunks."
            )
        codes = [layout.get_filter(index)[0] for index in range(layout.get_nfilters())]
        if unknown := sorted(set(codes) - _FILTERS):
            raise InputError(
                f"The variable '{name}' of '{self._url}' is stored with the HDF5 filter {unknown[0]}, which is not one "
                "that is read. Write it again with deflate (gzip) or without a filter, for example by h5repack."
            )

    def _check_attributes(self, node: Any, name: str) -> None:
        from h5py import h5a

        for index in range(h5a.get_num_attrs(node)):
            attribute = h5a.open(node, index=index)
            # The name and its entry take memory as well.
            self._attribute_bytes += (
                attribute.get_space().get_simple_extent_npoints() * attribute.get_type().get_size() + 256
            )
            if self._attribute_bytes > MOST_DOCUMENT_BYTES:
                raise InputError(
                    f"The attributes of '{self._url}' up to '{name}' take {self._attribute_bytes:,} bytes; at most "
                    f"{MOST_DOCUMENT_BYTES:,} are read. Leave them out, or save them as variables."
                )

    def _check_dimensions(self, root: Any, seen: set[int]) -> None:
        """Refuse a dimension that is an object without a link, which the walk did not meet."""
        import h5py
        from h5py import h5a, h5d, h5o, h5r

        for node in self.objects:
            if not isinstance(node, h5d.DatasetID) or not h5a.exists(node, _DIMENSIONS):
                continue
            scales = h5py.Dataset(node).attrs[_DIMENSIONS.decode()]
            for scale in (scale for axis in scales for scale in axis):
                target = h5r.dereference(scale, root.id) if scale else None
                if target is not None and h5o.get_info(target).addr not in seen:
                    raise InputError(
                        f"A dimension of '{self._url}' is described by an object that no name leads to; the file is "
                        "damaged. Write it again."
                    )

    def _refuse(self, reason: str) -> None:
        raise InputError(
            f"'{self._url}' refers to other files: {reason}. HDF5 would open them wherever they lie, so that "
            "nothing of this file is read. Copy the values into one file first, for example in Python with h5py: "
            "`new[name] = old[name][:]`."
        )
