"""Contents of deploy/ and docker-compose.yml, parsed as the tools parse them, and all their command lines."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import dkgp

__all__ = [
    "COMPOSE",
    "CORE",
    "DEPLOY",
    "FILES",
    "IMAGE",
    "OTHERS",
    "ROOT",
    "Line",
    "chooses",
    "command_lines",
    "compose",
    "dashboards",
    "documents",
    "example_settings",
    "from_yaml",
    "interpolate",
    "kustomization",
    "mentions",
    "pod_specs",
    "python_snippets",
    "text_files",
    "validate",
]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "docker-compose.yml"
IMAGE = f"dkgp:{dkgp.__version__}"

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:-|:\?)([^}]*))?\})")
# Where a command line ends and the shell's own business begins.
_SHELL = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "then", "do"}


class Line(NamedTuple):
    """A command line and where it stands."""

    place: str
    arguments: list[str]


def from_yaml(path: Path) -> list[Any]:
    """A file's YAML documents, read in C where libyaml is: in Python that takes a tenth of a second a file."""
    return list(yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def interpolate(text: str, settings: Mapping[str, str]) -> str:
    """Replace ${NAME}, ${NAME:-default} and ${NAME:?message} as Compose does; $$ is a dollar sign."""

    def value(match: re.Match[str]) -> str:
        dollar, name, operator, word = match.groups()
        if dollar:
            return "$"
        if settings.get(name):
            return settings[name]
        assert operator is not None, f"${{{name}}} has neither a default nor a message"
        assert operator == ":-", f"{name} {word}"
        return word

    return _VARIABLE.sub(value, text)


def compose(settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """docker-compose.yml with its variables replaced: by `settings`, else by their defaults."""
    given = {"DKGP_SECRETS_GROUP": "1000"} if settings is None else settings

    def replace(node: Any) -> Any:
        if isinstance(node, str):
            return interpolate(node, given)
        if isinstance(node, dict):
            return {key: replace(value) for key, value in node.items()}
        return [replace(value) for value in node] if isinstance(node, list) else node

    (project,) = replace(from_yaml(COMPOSE))
    return project  # type: ignore[no-any-return]


def example_settings() -> dict[str, str]:
    """The variables that .env.example names, and their values."""
    lines = (DEPLOY / "compose" / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def documents(folder: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every YAML document of a folder of deploy/, with its file."""
    for path in sorted((DEPLOY / folder).glob("*.yaml")):
        for document in from_yaml(path):
            yield path, document


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod of deploy/kubernetes: what of it, and its specification."""
    for path, document in documents("kubernetes"):
        spec = document.get("spec", {})
        if document["kind"] == "Deployment":
            yield f"{path.name} {document['metadata']['name']}", spec["template"]["spec"]
        elif document["kind"] == "DaskCluster":
            yield f"{path.name} scheduler", spec["scheduler"]["spec"]
            yield f"{path.name} worker", spec["worker"]["spec"]
        elif document["kind"] == "DaskJob":
            yield f"{path.name} job", spec["job"]["spec"]
            yield f"{path.name} scheduler", spec["cluster"]["spec"]["scheduler"]["spec"]
            yield f"{path.name} worker", spec["cluster"]["spec"]["worker"]["spec"]


def chooses(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] in ("Exists", "In") for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"], "") in expression.get("values", labels.values()) for expression in expressions
    )


def kustomization() -> dict[str, Any]:
    (found,) = from_yaml(DEPLOY / "kubernetes" / "kustomization.yaml")
    return found  # type: ignore[no-any-return]


def text_files() -> list[Path]:
    """Everything that people read or run."""
    found = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and "secrets" not in path.parts]
    return [COMPOSE, *(path for path in found if path.suffix not in (".json", ".pyc"))]


def command_lines() -> list[Line]:
    """Every whole command line of dkgp, of a scheduler and of a worker."""
    lines = [*_of_containers(), *_of_the_chart()]
    for path in text_files():
        text = path.read_text()
        place = str(path.relative_to(ROOT))
        for snippet in python_snippets(path):
            lines += [Line(place, arguments) for arguments in _python_lists(snippet)]
        if path.suffix == ".md":
            blocks = re.findall(r"^```sh\n(.*?)^```|^(    .*?)$", text, flags=re.DOTALL | re.MULTILINE)
            text = "\n".join(fenced or indented for fenced, indented in blocks)
        lines += [Line(place, arguments) for line in _shell_lines(text) if (arguments := _command(line))]
    return lines


def mentions() -> list[Line]:
    """Commands named in running text, `dkgp plan` and the like: perhaps without what they need to run."""
    found = []
    for path in text_files():
        for text in re.findall(r"`((?:dkgp|dask) [^`\n]+)`", path.read_text()):
            found.append(Line(str(path.relative_to(ROOT)), shlex.split(text)))
    return found


def python_snippets(path: Path) -> list[str]:
    """The Python code blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def _of_containers() -> Iterator[Line]:
    for name, service in compose()["services"].items():
        command = service.get("command", [])
        if command and command[0] in ("dkgp", "dask"):
            yield Line(f"docker-compose.yml {name}", command)
    for place, spec in pod_specs():
        for container in spec["containers"]:
            yield Line(place, container["args"])


def _of_the_chart() -> Iterator[Line]:
    """As the chart's templates (dask-scheduler-deployment.yaml, dask-worker-deployment.yaml) put them together."""
    values = from_yaml(DEPLOY / "helm" / "values.yaml")[0]
    scheduler, worker = values["scheduler"], values["worker"]
    port, limits = scheduler["servicePort"], worker["resources"]["limits"]
    yield Line(
        "helm scheduler",
        ["dask", "scheduler", f"--port={port}", "--dashboard-address=:8787", *scheduler.get("extraArgs", [])],
    )
    own = ["--nthreads", str(limits["cpu"]), "--memory-limit", str(limits["memory"]), "--no-dashboard"]
    dashboard = ["--dashboard-address", str(worker["portDashboard"])]
    address = f"dkgp-dask-scheduler:{port}"
    yield Line("helm worker", ["dask", "worker", address, *own, *dashboard, *worker.get("extraArgs", [])])


def _shell_lines(text: str) -> Iterator[str]:
    """Lines of code blocks, comments and scripts, with those that a backslash continues joined."""
    joined = ""
    for raw in text.splitlines():
        line = re.sub(r"^\s*#+(?:\s+|$)", "", raw).strip()
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield joined + line
        joined = ""


def _command(line: str) -> list[str] | None:
    """The command in a shell line that is one; None where the line is prose, or something else."""
    line = re.sub(
        r"^(?:docker compose run --rm (?=dkgp )|(?:srun|exec|kubectl \S.* -- |docker run \S+ \S+ ))", "", line
    )
    line = re.sub(r"^docker run --rm \S+ ", "", line)
    line = re.sub(r"^(?:[A-Z_]+=\S*\s+)*(?:srun\s+(?:-\S+\s+)*)?", "", line)
    match = re.search(r"(?:^|\$\()((?:dkgp|dask (?:scheduler|worker))(?: .*)?$)", line)
    if match is None or "`" in line:
        return None
    words = match[1].partition("   ")[0]
    words = words[: words.index(")")] if line[: match.start(1)].endswith("$(") else words
    try:
        arguments = shlex.split(words, comments=True)
    except ValueError:
        return None
    ends = [index for index, word in enumerate(arguments) if word in _SHELL]
    arguments = arguments[: ends[0]] if ends else arguments
    # A sentence that begins with the program's name is no command line.
    second = arguments[1] if len(arguments) > 1 else ""
    return arguments if re.fullmatch(r"-{1,2}[a-z-]+|[a-z]+", second) and not line.endswith((".", ",", ":")) else None


def _python_lists(snippet: str) -> Iterator[list[str]]:
    """Calls of the page's own dkgp_on, as the command lines that they become."""
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dkgp_on":
            yield ["dkgp", *shlex.split(ast.literal_eval(node.args[1]))]


def dashboards() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Grafana's dashboards."""
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        yield path, json.loads(path.read_text())


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed (pip install 'dkgp[test]')"
    )
    kubernetes_validate.validate(document, VERSION, strict=True)


VERSION = "1.33"
# Every document of deploy/kubernetes and of deploy/helm, and those of kinds that are Kubernetes' own.
FILES = [*documents("kubernetes"), *((path, d) for path, d in documents("helm") if path.name != "values.yaml")]
OTHERS = ("kubernetes.dask.org", "kustomize", "cert-manager.io")
CORE = [(path, d) for path, d in FILES if not d["apiVersion"].startswith(OTHERS)]
