"""The deployment files: each is valid by its schema, agrees with the package, and its commands run and end."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cluster.server import Server
from shardq import Engine
from shardq.worker.base import DEFAULT_GRACE_S
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "cluster/deploy"
MANIFESTS = [path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if path.name != "kustomization.yaml"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
KUBERNETES = "1.30"
"""The oldest version of which the manifests are checked; the newest is checked besides."""

SHARDQ = Path(sys.executable).parent / "shardq"

PLACE = re.compile(r"(0\.0\.0\.0|127\.0\.0\.1):(\d+)")


def resources() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for each in yaml.safe_load_all(path.read_text()):
            yield f"{each['kind']} {each['metadata']['name']}", each


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read(path)
    return parser


def settings() -> dict[str, str]:
    lines = (DEPLOY / "systemd/shop.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Deployments: name, pod, container."""
    for name, each in resources():
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield name, pod, container


def commands() -> list[list[str]]:
    """The words after ``shardq``, of every file; each once."""
    found = [container["args"] for _, _, container in containers()]
    found += [service["command"] for name, service in compose().items() if name != "valkey"]
    (last,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    found.append(json.loads(last))
    for path in UNITS:
        line = unit(path)["Service"]["ExecStart"]
        for name, value in settings().items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line)
        assert words[0] == "/opt/shardq/bin/shardq"
        found.append(words[1:])
    same = {tuple(PLACE.sub("HOST:PORT", word) for word in words): words for words in found}
    return list(same.values())


@pytest.mark.parametrize(
    ("name", "resource"), list(resources()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("version", [KUBERNETES, kubernetes_validate.latest_version()])
def test_manifests_are_valid(name: str, resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def test_the_kustomization_names_every_manifest() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]


def test_the_compose_file_is_valid() -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*words, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_valid(workflow: Path) -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*words, workflow], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    """Whoever owns an action can move its tags and branches, also below a job that may mint tokens."""
    actions = re.findall(r"uses: (.+)", workflow.read_text())
    assert actions
    assert [each for each in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_budgets_and_scaling_are_for_deployments_that_exist() -> None:
    kinds = dict(resources())
    labels = {name.split()[1]: each["spec"]["template"]["metadata"]["labels"]
              for name, each in kinds.items() if each["kind"] == "Deployment"}  # fmt: skip
    for each in kinds.values():
        if each["kind"] == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
        elif each["kind"] == "HorizontalPodAutoscaler":
            assert each["spec"]["scaleTargetRef"]["name"] in labels


def test_workers_are_given_longer_to_end_than_they_take() -> None:
    pods = {name: pod["terminationGracePeriodSeconds"] for name, pod, _ in containers()}
    assert pods["Deployment shardq-work"] > DEFAULT_GRACE_S
    stop = unit(DEPLOY / "systemd/shardq-work@.service")["Service"]["TimeoutStopSec"]
    assert int(stop) > DEFAULT_GRACE_S
    assert int(compose()["work"]["stop_grace_period"].removesuffix("s")) > DEFAULT_GRACE_S


def test_the_image_has_what_its_command_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"^shardq\[([\w,]+)\]$", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE)
    assert set(wanted.split(",")) <= set(extras)
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE) == ["requirements.txt *.whl ./"], "of its own folder"
    assert compose()["run"]["build"]["context"] == "."


def test_probes_ask_for_what_is_served() -> None:
    for name, _, container in containers():
        (port,) = (each["containerPort"] for each in container["ports"])
        assert f"0.0.0.0:{port}" in container["args"] or {"0.0.0.0", str(port)} <= set(container["args"]), name
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_container_is_judged_by_its_own_life() -> None:
    """By the engine's verdict one slow topic would mark every container."""
    for name, service in compose().items():
        if name != "valkey":
            kind, *words = service["healthcheck"]["test"]
            (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", words[-1])[0]
            assert (kind, words[:2], path) == ("CMD", ["python", "-c"], "/livez")
            assert any(each.endswith(port) for each in service["command"]), name


@pytest.mark.parametrize(
    "path", [path for path in UNITS if "Restart" in unit(path)["Service"]], ids=lambda path: path.stem
)
def test_a_machine_has_room_for_several_engines(path: Path) -> None:
    """A port in the unit would be that of the first one; the others would be started again and again."""
    service = unit(path)["Service"]
    assert "--http" not in service["ExecStart"]
    assert service["RestartPreventExitStatus"] == "2"
    part = path.stem.removeprefix("shardq-").removesuffix("@").upper()
    assert f"SHARDQ_{part}_{'PORT' if part == 'SERVE' else 'HTTP'}" in settings()


def test_what_others_reach_asks_for_tokens_that_no_file_has() -> None:
    """Without the Secret no pod starts."""
    assert "./tokens:/etc/shardq/tokens:ro" in compose()["serve"]["volumes"]
    assert all("--tokens" in words for words in commands() if words[0] == "serve")
    assert not list(DEPLOY.rglob("*tokens*"))
    for name, _, container in containers():
        for source in container["envFrom"]:
            (each,) = source.values()
            assert not each.get("optional"), name


def test_no_file_has_a_secret() -> None:
    """A placeholder would be applied."""
    assert [name for name, _ in resources() if name.startswith("Secret")] == []
    texts = [path.read_text() for path in (*MANIFESTS, *(DEPLOY / "systemd").iterdir())]
    assert [text for text in texts if re.search("SHARDQ_URL[=:] *[a-z]", text)] == []


def test_pods_hold_to_the_restricted_standard_and_have_no_token() -> None:
    for name, pod, container in containers():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_each_part_has_policies_and_reaches_the_servers() -> None:
    policies = {name.split()[1]: each["spec"] for name, each in resources() if each["kind"] == "NetworkPolicy"}
    servers = policies.pop("shardq-servers")
    assert set(policies) == {name.split()[1] for name, _, _ in containers()}
    for name, spec in policies.items():
        assert (spec["podSelector"]["matchLabels"], spec["policyTypes"]) == ({"app": name}, ["Ingress", "Egress"])
        assert [each["ports"] for each in spec["ingress"]] == [[{"port": "http"}]]
        assert spec["egress"][0] == {"to": [{"podSelector": servers["podSelector"]}], "ports": [{"port": 6379}]}
        (let_in,) = servers["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
        assert (let_in["key"], let_in["operator"]) == ("app", "In")
        assert name in let_in["values"]


def test_the_dashboard_of_a_cluster_is_behind_tls() -> None:
    kinds = dict(resources())
    (args,) = (container["args"] for name, _, container in containers() if name.endswith("serve"))
    assert "--behind-tls" in args
    ingress = kinds["Ingress shardq-serve"]["spec"]
    assert ingress["tls"][0]["hosts"] == [rule["host"] for rule in ingress["rules"]]


def test_images_are_named_by_digest() -> None:
    """And the files refuse to start anything before one is given."""
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert {each["name"] for each in kustomization["images"]} == {
        container["image"] for _, _, container in containers()
    }
    for each in kustomization["images"]:
        assert "newTag" not in each
        assert not re.fullmatch("sha256:[0-9a-f]{64}", each["digest"]), "it would be old where it is copied to"
    services = compose()
    pulled = [service["image"] for service in services.values() if service["image"] != "shardq"]
    assert [re.sub("give .*", "", image) for image in pulled] == ["valkey/valkey@${VALKEY_DIGEST:?"]
    assert services["run"]["build"]["args"]["PYTHON_DIGEST"].startswith("${PYTHON_DIGEST:?")
    below = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert below == ["python@${PYTHON_DIGEST:?give-the-digest-of-python:3.12-slim}", "python@${PYTHON_DIGEST}"]


def test_containers_and_units_have_no_privileges() -> None:
    for name, service in compose().items():
        confined = (service["cap_drop"], service["read_only"], service["security_opt"])
        assert confined == (["ALL"], True, ["no-new-privileges:true"]), name
    for path in UNITS:
        service = unit(path)["Service"]
        assert (service["CapabilityBoundingSet"], service["NoNewPrivileges"]) == ("", "yes"), path
        assert re.fullmatch(r"\d+M", service["MemoryMax"]), path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def answer(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            status: int = found.status
            return status
    except urllib.error.HTTPError as exc:
        return exc.code
    except OSError:
        return 0


def here(words: list[str], port: int, tokens: Path) -> list[str]:
    """A command as it can be run on this machine."""
    places = {"0.0.0.0": "127.0.0.1", "8787": str(port), "/etc/shardq/tokens": str(tokens)}
    return [places.get(word, word).replace("/etc/shardq/%i.tokens", str(tokens)) for word in words]


def wait_until_ready(port: int, process: subprocess.Popen[Any]) -> None:
    wait_until(lambda: answer(port, "/readyz") == 200 or process.poll() is not None, "it is ready", timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_run_and_end(words: list[str], single: Server, name: str, tmp_path: Path) -> None:
    port = free_port()
    if words[0] == "serve":
        words = here(words, port, write_tokens(tmp_path / "tokens", ops=("ops-secret", "operator", "*")))
        Engine(single.url, name=name).open().close()  # it makes no engine
    words = [PLACE.sub(f"127.0.0.1:{port}", word) for word in words]
    environment = {"SHARDQ_URL": single.url, "SHARDQ_NAME": name, "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    environment |= {key: f"127.0.0.1:{port}" for key in settings() if key.endswith("_HTTP")}
    environment["SHARDQ_SERVE_PORT"] = str(port)
    served = ["run", "--create", "--quiet", "--http", f"127.0.0.1:{port}"] if words[0] == "health" else words
    process = subprocess.Popen(
        [SHARDQ, *served],
        env=environment,
        cwd=DEPLOY / "app",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_ready(port, process)
        assert process.poll() is None, process.communicate()
        assert answer(port, "/livez") == 200
        assert answer(port, "/metrics") == (401 if words[0] == "serve" else 200)
        if words[0] == "health":
            seen = subprocess.run([SHARDQ, *words], env=environment, capture_output=True, text=True, check=False)
            assert seen.returncode == 0, seen.stdout + seen.stderr
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
    finally:
        process.kill()
        process.communicate()


CLIENT = """#!{python}
import pathlib, shlex, sys, redis
if "secret" in sys.argv:
    pathlib.Path({folder!r}, sys.argv[4]).write_text(sys.stdin.read())
elif "apply" not in sys.argv:
    client = redis.Redis(port={port})
    for line in sys.stdin:
        assert client.execute_command(*shlex.split(line)) in (True, b"OK")
"""
"""kubectl and redis-cli: takes what ACLs are given, and keeps Secrets in a folder."""

PARTS = {
    "Kubernetes": ("shardq-run", "shardq-work", "shardq-serve"),
    "systemd": ("shop.run.env", "shop.work.env", "shop.serve.env", "shop.health.env"),
}
"""Kind → its Secrets or files, each with a user of its part."""


@pytest.mark.parametrize("kind", PARTS)
def test_each_part_does_its_work_as_a_user_of_its_own(kind: str, own_server: Server, tmp_path: Path) -> None:
    """The lines of the page make the users and the secrets; the commands of the files run with those."""
    page = (DEPLOY / "README.md").read_text()
    (lines,) = re.findall(rf"^    # {kind}, once.*\n((?:    .*\n)+)", page, re.MULTILINE)
    lines = lines[lines.index("    for part") :].replace("/etc/shardq", str(tmp_path))
    lines = re.sub("    systemctl .*", "", lines.replace("/opt/shardq/bin/", ""))
    for name in ("kubectl", "redis-cli"):
        text = CLIENT.format(python=sys.executable, folder=str(tmp_path), port=own_server.port)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{SHARDQ.parent}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(["bash", "-euc", lines], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = {}
    for name in PARTS[kind]:
        part = re.sub("shardq-|shop.|.env", "", name)
        given[name] = dict([(tmp_path / name).read_text().strip().split("=", 1)])
        url = given[name]["SHARDQ_URL"]
        assert re.fullmatch(rf"redis(\+cluster)?://shop-{part}:[0-9a-f]{{64}}@.*", url)
        given[name]["SHARDQ_URL"] = re.sub(r"redis.*://(.*)@.*", rf"redis://\1@127.0.0.1:{own_server.port}", url)
    tokens = tmp_path / ("shardq-serve-tokens" if kind == "Kubernetes" else "shop.tokens")
    assert tokens.read_text().startswith("ops operator * sha256:")
    if kind == "systemd":
        assert (tmp_path / "shop.run.env").stat().st_mode & 0o077 == 0
    with contextlib.ExitStack() as running:
        for words, name in ((words, name) for name in given for words in commands() if words[0] in name):
            port = free_port()
            words = here(words, port, tokens)
            words = [PLACE.sub(f"127.0.0.1:{port}", word) for word in words]
            own = {**given[name], "SHARDQ_NAME": "shop", "SHARDQ_EMBEDDED": "never", "PATH": environment["PATH"]}
            own |= {key: f"127.0.0.1:{port}" for key in settings() if key.endswith("_HTTP")}
            own["SHARDQ_SERVE_PORT"] = str(port)
            process = running.enter_context(subprocess.Popen([SHARDQ, *words], env=own, cwd=DEPLOY / "app"))
            running.callback(process.terminate)
            if words[0] == "health":
                assert process.wait(60) == 0
            else:
                wait_until_ready(port, process)
                assert process.poll() is None
        assert own_server.ask("ACL", "LOG") == []


def test_the_page_tells_what_to_do_at_each_alert() -> None:
    rules = yaml.safe_load((ROOT / "shardq/metrics/alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    told = set(re.findall(r"^\| `(Shardq\w+)` \|", (ROOT / "cluster/README.md").read_text(), re.MULTILINE))
    assert told == alerts
