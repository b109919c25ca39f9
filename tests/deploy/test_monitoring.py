"""deploy/prometheus and deploy/grafana: they load, ask who is there, and name only metrics that are served."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.deployment import DEPLOY, compose, dashboards, from_yaml

SERVICES = compose()["services"]
PROMETHEUS = from_yaml(DEPLOY / "prometheus" / "prometheus.yml")[0]
ALERTS = from_yaml(DEPLOY / "prometheus" / "alerts.yml")[0]
JOBS = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
# What PromQL itself means by a word that is not followed by a bracket.
WORDS = {"and", "or", "unless", "on", "ignoring", "by", "without", "group_left", "group_right", "bool", "offset"}


def expressions() -> Iterator[tuple[str, str]]:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for _, dashboard in dashboards():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{panel['title']} {target['refId']}", target["expr"]


EXPRESSIONS = list(expressions())


def asked(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels that it is chosen by."""
    labels_of: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", expression):
        labels_of.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expression)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    for name in re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare):
        if name not in WORDS:
            labels_of.setdefault(name, set())
    return labels_of


def parse(text: str) -> dict[str, set[str]]:
    """The names of Prometheus's text format, each with its labels."""
    served: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE):
        served.setdefault(name, set())
        if kind == "histogram":
            served |= {f"{name}_bucket": {"le"}, f"{name}_count": set(), f"{name}_sum": set()}
    for name, labels in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$", text, flags=re.MULTILINE):
        served.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    return served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the metrics that a scheduler, a worker and a service serve here."""
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed (pip install 'dkgp[service]')")
    from distributed import LocalCluster

    found = {"up": {"job", "instance"}}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        cluster.get_client() as client,
    ):
        assert client.submit(sum, (1, 2)).result() == 3
        for server in (cluster.scheduler, *cluster.workers.values()):
            with opener.open(f"http://127.0.0.1:{server.http_server.port}/metrics", timeout=30) as answer:
                found |= parse(answer.read().decode())
    return found | served_by_the_service(tmp_path_factory.mktemp("queue"))


def served_by_the_service(folder: Path) -> dict[str, set[str]]:
    from prometheus_client import generate_latest

    from dkgp.service.queue.job_queue import JobQueue
    from dkgp.service.settings import ServiceSettings
    from dkgp.service.web.metrics import ServiceMetrics

    metrics = ServiceMetrics(JobQueue(folder), ServiceSettings(folder=str(folder)))
    found = parse(generate_latest(metrics.registry).decode())
    for collector in list(metrics.registry._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for name in metrics.registry._collector_to_names[collector]:
            found[name] = found.get(name, set()) | labels
    return found


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS, ids=[place for place, _ in EXPRESSIONS])
def test_metrics_are_served(place: str, expression: str, served: dict[str, set[str]]) -> None:
    names = asked(expression)
    assert names
    # What has no series yet, because no job runs, shows no labels either.
    own = {"job", "instance"}
    for name, labels in names.items():
        assert name in served, f"{place}: nothing serves {name}"
        assert not served[name] or labels <= served[name] | own, f"{place}: {name} has no label {labels - served[name]}"


def test_a_metric_that_does_not_exist_would_be_seen(served: dict[str, set[str]]) -> None:
    assert asked('sum by (state) (dkgp_jobs{state="queued"}) > 2 * on () rate(no_such_total[5m])') == {
        "dkgp_jobs": {"state"},
        "no_such_total": set(),
    }
    assert "no_such_total" not in served
    assert served["dkgp_jobs"] == {"state"}
    assert served["dask_scheduler_workers"] == {"state"}
    assert served["dkgp_jobs_finished_total"] >= {"outcome"}


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS, ids=[place for place, _ in EXPRESSIONS])
def test_brackets_close(place: str, expression: str) -> None:
    for pair in ("()", "{}", "[]"):
        assert expression.count(pair[0]) == expression.count(pair[1]), place
    assert expression.count('"') % 2 == 0


def test_states_are_those_of_jobs_and_workers() -> None:
    from dkgp.service.queue import records

    known = set(records.STATES) | {"idle", "partially_saturated", "saturated", "paused", "retiring"}
    asked = [
        (place, values)
        for place, expression in EXPRESSIONS
        for values in re.findall(r'(?:state|outcome)=~?"([^"]*)"', expression)
    ]
    assert asked
    for place, values in asked:
        assert set(values.split("|")) <= known, place


def test_every_job_is_asked_where_it_listens() -> None:
    assert set(JOBS) == {"dkgp-service", "dask-scheduler", "dask-worker"}
    targets = [target for job in JOBS.values() for one in job.get("static_configs", []) for target in one["targets"]]
    (names,) = [one for job in JOBS.values() for one in job.get("dns_sd_configs", [])]
    targets += [f"{name}:{names['port']}" for name in names["names"]]
    assert len(targets) == 3
    for target in targets:
        host, port = target.split(":")
        assert f":{port}/" in SERVICES[host]["environment"]["DKGP_HEALTH_URL"], target
        assert set(SERVICES[host]["networks"]) & set(SERVICES["prometheus"]["networks"])
    secret = JOBS["dkgp-service"]["authorization"]["credentials_file"]
    assert secret.rpartition("/")[2] in SERVICES["prometheus"]["secrets"]
    used = {job for _, expression in EXPRESSIONS for job in re.findall(r'job=~?"([^"]+)"', expression)}
    assert {one for jobs in used for one in jobs.split("|")} <= set(JOBS)


def test_alerts_say_what_to_do() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert PROMETHEUS["rule_files"] == ["alerts.yml"]


def test_files_are_mounted_where_they_are_looked_for() -> None:
    config = next(word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file="))
    assert config == "--config.file=/etc/prometheus/prometheus.yml"
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert mounts["./deploy/prometheus"] == "/etc/prometheus"

    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = from_yaml(provisioning / "dashboards" / "dkgp.yml")[0]["providers"]
    folder = mounts["./deploy/grafana/dashboards"]
    assert provider["options"]["path"] == folder
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana" / "dashboards" / Path(home).relative_to(folder)).is_file()


def test_dashboard() -> None:
    (source,) = from_yaml(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")[0]["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert f":{port}/" in SERVICES[host]["healthcheck"]["test"][-1]
    ((_, dashboard),) = dashboards()
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for part in (panel, *panel.get("targets", [])):
            if panel["type"] != "row":
                assert part["datasource"] == {"type": source["type"], "uid": source["uid"]}
