"""The observability example: every metric exists, every alert fires and stays silent when it should, and the files are well-formed."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/observability"
RULES = yaml.safe_load((EXAMPLE / "afterbay.rules.yml").read_text())["groups"][0]["rules"]
TESTS = yaml.safe_load((EXAMPLE / "afterbay.rules.test.yml").read_text())["tests"]
DASHBOARD = json.loads((EXAMPLE / "dashboards/afterbay.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMTOOL = os.environ.get("AFTERBAY_PROMTOOL") or shutil.which("promtool")
SCHEMA = os.environ.get("AFTERBAY_COMPOSE_SCHEMA")

needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed, and apt-get cannot download it")


def published():
    """Each metric of the book's table, which a test of afterbay-events compares with the exposition, with its type and labels."""
    page = (ROOT / "docs/src/operate/metrics.md").read_text()
    found = {}
    for name, kind, labels in re.findall(r"^\| `(afterbay_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", labels))
        found[name] = names
        if kind == "histogram":
            found |= {f"{name}_bucket": names | {"le"}, f"{name}_sum": names, f"{name}_count": names}
    assert len(found) > 100
    return found


PUBLISHED = published()
# Prometheus adds these to every series.
TARGET_LABELS = {"job", "instance"}


def expressions():
    """Every expression of PromQL in the example, with its place."""
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["name"], variable["query"] if isinstance(variable["query"], str) else variable["query"]["query"]


def test_every_metric_of_an_expression_is_published_with_the_labels_that_select_it():
    wrong = []
    for place, expression in expressions():
        for name, selector in re.findall(r"(?<![\w\"])(afterbay_\w+)(?:\{([^}]*)\})?", expression):
            if name not in PUBLISHED:
                wrong.append(f"{place}: no metric {name}")
                continue
            selected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            wrong += [f"{place}: {name} has no label {label}" for label in selected - PUBLISHED[name] - TARGET_LABELS]
    assert wrong == []


def test_every_label_of_a_sentence_or_a_legend_is_one_of_its_metrics():
    wrong = []
    for rule in RULES:
        labels = set().union(*(PUBLISHED.get(name, set()) for name in re.findall(r"\w+", rule["expr"]))) | TARGET_LABELS
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        wrong += [f"{rule['alert']}: {label}" for label in used - labels]
    for panel in PANELS:
        for target in panel["targets"]:
            labels = set().union(*(PUBLISHED.get(name, set()) for name in re.findall(r"\w+", target["expr"])))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            wrong += [f"{panel['title']}: {label}" for label in used - labels - TARGET_LABELS]
    assert wrong == []


def test_every_alert_says_how_urgent_it_is_and_links_to_a_heading_of_the_troubleshooting_page():
    page = (ROOT / "docs/src/operate/troubleshooting.md").read_text()
    headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.*)$", page, re.M)}
    for rule in RULES:
        assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"}), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        link = re.fullmatch(r"https://afterbay\.example/operate/troubleshooting\.html#([\w-]+)", rule["annotations"]["runbook_url"])
        assert link and link[1] in headings, rule["alert"]
        # One failed scrape or one short pause wakes nobody.
        assert rule["labels"]["severity"] == "ticket" or rule["for"] == "1m", rule["alert"]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent():
    fires, silent = set(), set()
    for case in TESTS:
        for check in case["alert_rule_test"]:
            (fires if check["exp_alerts"] else silent).add(check["alertname"])
    assert fires == silent == {rule["alert"] for rule in RULES}


@needs_promtool
def test_the_cases_of_the_alerts_pass():
    done = subprocess.run([PROMTOOL, "test", "rules", "afterbay.rules.test.yml"], cwd=EXAMPLE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("replacement", ["vector(0) > 1", "vector(1) > 0"])
def test_the_cases_notice_each_alert_that_fires_never_or_always(replacement, tmp_path):
    changed = yaml.safe_load((EXAMPLE / "afterbay.rules.yml").read_text())
    for each in changed["groups"][0]["rules"]:
        each["expr"] = replacement
    (tmp_path / "afterbay.rules.yml").write_text(yaml.safe_dump(changed))
    shutil.copy(EXAMPLE / "afterbay.rules.test.yml", tmp_path)
    done = subprocess.run([PROMTOOL, "test", "rules", "afterbay.rules.test.yml"], cwd=tmp_path, capture_output=True, text=True)
    noticed = set(re.findall(r"alertname:\s*(\w+)", done.stdout + done.stderr))
    assert noticed == {rule["alert"] for rule in RULES}


@needs_promtool
def test_prometheus_accepts_its_configuration():
    done = subprocess.run([PROMTOOL, "check", "config", "prometheus.yml"], cwd=EXAMPLE, capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


@needs_promtool
def test_prometheus_can_parse_every_expression_of_the_dashboard(tmp_path):
    substitutes = [("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*"), ("$stream", ".*")]
    rules = []
    for panel in PANELS:
        for number, target in enumerate(panel["targets"]):
            expression = target["expr"]
            for variable, value in substitutes:
                expression = expression.replace(variable, value)
            assert "$" not in expression
            rules.append({"record": f"panel_{panel['id']}_{number}", "expr": expression})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_what_grafana_reads():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    taken = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert grid["x"] + grid["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["type"] in ("stat", "timeseries", "state-timeline")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        used = set(re.findall(r"\$(\w+)", json.dumps(panel["targets"]))) - {"__rate_interval"}
        assert used <= variables, panel["title"]


def test_the_compose_file_follows_the_schema_and_names_existing_files():
    compose = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    if not SCHEMA:
        pytest.skip("AFTERBAY_COMPOSE_SCHEMA is not set: make test-deployment sets it")
    schema = json.loads(Path(SCHEMA).read_text())
    jsonschema.Draft201909Validator(schema).validate(compose)
    named = {name for name in compose["volumes"]}
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named or (EXAMPLE / source).exists(), source


def test_grafana_is_provisioned_with_the_dashboard_and_the_metrics_of_prometheus():
    compose = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for volume in compose["grafana"]["volumes"])
    (provider,) = yaml.safe_load((EXAMPLE / "grafana/provisioning/dashboards/afterbay.yml").read_text())["providers"]
    assert mounts["./dashboards"] == provider["options"]["path"]
    (source,) = yaml.safe_load((EXAMPLE / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    scrape = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())
    assert scrape["rule_files"] == ["afterbay.rules.yml"]
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "afterbay", "the alert AfterbayDown names the job"


def test_afterbay_accepts_the_configuration_of_the_compose_file(afterbay):
    done = subprocess.run([afterbay, "check", "--config", EXAMPLE / "afterbay.toml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
