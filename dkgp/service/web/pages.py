"""Pages for a browser: the page with its script and style, and the description of the calls."""

# No `from __future__ import annotations`: FastAPI reads annotations, and here they name what is imported in a function.
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_pages(app: "FastAPI", *, needs_token: bool) -> None:
    """Have an application serve the pages; they hold no data."""
    from starlette.responses import HTMLResponse, Response

    def add(path: str, name: str, media_type: str) -> None:
        content = (files("dkgp.service.web") / name).read_text(encoding="utf-8")
        if needs_token:
            content = content.replace('data-token="none"', 'data-token="required"', 1)

        async def page() -> Any:
            return Response(content, headers={"content-type": media_type})

        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)

    for path, (name, media_type) in PAGE_FILES.items():
        add(path, name, media_type)

    @cache
    def described() -> tuple[bytes, bytes]:
        """The description as JSON and as a page; strangers may ask for it as often as they like."""
        schema = app.openapi()
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode(), describe_calls(schema).encode()

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
    async def openapi() -> Any:
        return Response(described()[0], media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Any:
        return HTMLResponse(described()[1])


def describe_calls(schema: Mapping[str, Any]) -> str:
    """Return an OpenAPI description as a page that loads nothing from elsewhere."""
    calls = [
        _call(method.upper(), path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    shapes = [_shape(name, shape) for name, shape in schema.get("components", {}).get("schemas", {}).items()]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: calls</title><link rel="icon" href="/icon.svg"><link rel="stylesheet" href="/page.css">'
        f'</head><body class="docs"><header><h1>{title}</h1><nav><a href="/">Jobs</a> '
        '<a href="/openapi.json">OpenAPI</a></nav></header><main>'
        f"<p>{escape(schema['info'].get('description', ''))}</p>"
        "<p>Every call but <code>/healthz</code> needs the header <code>Authorization: Bearer TOKEN</code>, unless the "
        "service was started without a token on this machine alone.</p>"
        f"<h2>Calls</h2>{''.join(calls)}<h2>Shapes</h2>{''.join(shapes)}</main></body></html>"
    )


def _call(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = [
        (f"{entry['name']} ({entry['in']})", _kind(entry.get("schema", {})), entry.get("description", ""))
        for entry in operation.get("parameters", ())
    ]
    parts = [f"<section><h3><code>{method} {escape(path)}</code></h3><p>{escape(operation.get('description', ''))}</p>"]
    if parameters:
        parts.append(_table(parameters))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for variant in body.get("oneOf", ()):
        options = variant["properties"]["options"]
        parts.append(f"<details><summary>{escape(variant['title'])}: options</summary>{_fields(options)}</details>")
    statuses = ", ".join(sorted(operation.get("responses", {})))
    parts.append(f"<p>Answers with {escape(statuses)}.</p></section>")
    return "".join(parts)


def _shape(name: str, shape: Mapping[str, Any]) -> str:
    text = escape(str(shape.get("description", "")).split("\n\n")[0])
    return f"<details><summary>{escape(name)}</summary><p>{text}</p>{_fields(shape)}</details>"


def _fields(shape: Mapping[str, Any]) -> str:
    required = shape.get("required", ())
    rows = []
    for name, entry in shape.get("properties", {}).items():
        note = "required" if name in required else f"default {entry['default']!r}" if "default" in entry else ""
        rows.append((name, _kind(entry), note))
        rows.extend(
            (f"{name}.{inner}", _kind(below), f"default {below['default']!r}" if "default" in below else "")
            for inner, below in entry.get("properties", {}).items()
        )
    return _table(rows) if rows else ""


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(str(note))}</td></tr>"
        for name, kind, note in rows
    ]
    return f"<table>{''.join(lines)}</table>"


def _kind(entry: Mapping[str, Any]) -> str:
    if "$ref" in entry:
        return str(entry["$ref"]).rpartition("/")[2]
    if "anyOf" in entry:
        return " or ".join(_kind(item) for item in entry["anyOf"])
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    if "const" in entry:
        return str(entry["const"])
    if entry.get("type") == "array":
        return f"list of {_kind(entry.get('items', {}))}"
    kind = entry.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
