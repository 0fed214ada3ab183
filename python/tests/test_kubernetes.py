"""The chart for Kubernetes, rendered by Go's templates as Helm does, without a cluster."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

go_template = pytest.importorskip("go_template", exc_type=ImportError)

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "packaging/kubernetes/forebay"
GIVEN = {
    "image": "registry.site/forebay:0.1.0",
    "pfs": "/lustre",
    "nodeSelector": {"kind": "compute"},
    "tolerations": [{"key": "hpc", "operator": "Exists", "effect": "NoSchedule"}],
    "resources": {"limits": {"memory": "64Gi"}},
    "podAnnotations": {"prometheus.io/port": "9464"},
}


def values(**given):
    """The chart's values with those that a user gives, checked as Helm checks them."""
    all_of_them = {**yaml.safe_load((CHART / "values.yaml").read_text()), **given}
    jsonschema.validate(all_of_them, json.loads((CHART / "values.schema.json").read_text()))
    return all_of_them


def render(directory, **given):
    """The DaemonSet."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {
        "Values": values(**given),
        "Release": {"Name": "forebay", "Namespace": "tiers"},
        "Chart": {"AppVersion": chart["appVersion"]},
    }
    (directory / "values.yml").write_text(yaml.safe_dump(context))
    out = directory / "out.yaml"
    go_template.render_template(str(CHART / "templates/daemonset.yaml"), str(directory / "values.yml"), str(out))
    return yaml.safe_load(out.read_text())


def test_the_chart_runs_an_agent_that_programs_of_the_node_find(tmp_path):
    daemons = render(tmp_path, **GIVEN)
    assert (daemons["kind"], daemons["metadata"]["namespace"]) == ("DaemonSet", "tiers")
    template = daemons["spec"]["template"]
    assert daemons["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert template["metadata"]["annotations"] == GIVEN["podAnnotations"]
    pod = template["spec"]
    assert (pod["hostNetwork"], pod["hostPID"]) == (True, True)
    assert (pod["nodeSelector"], pod["tolerations"]) == (GIVEN["nodeSelector"], GIVEN["tolerations"])
    [agent] = pod["containers"]
    assert (agent["image"], agent["resources"]) == (GIVEN["image"], GIVEN["resources"])
    assert agent["securityContext"] == {"privileged": True}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    # Programs of the node use the same paths.
    assert {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]} == volumes
    assert volumes == {"config": "/etc/forebay", "state": "/run/forebay", "pfs": "/lustre"}
    forebay = os.environ["FOREBAY_BIN"]
    for command in agent["command"], agent["readinessProbe"]["exec"]["command"]:
        assert command[0] == "/usr/bin/forebay", "where the image has it"
        subprocess.run([forebay, *command[1:], "--help"], check=True, capture_output=True)


def test_what_is_left_out_adds_nothing(tmp_path):
    template = render(tmp_path, image="forebay:1", pfs="/gpfs")["spec"]["template"]
    pod = template["spec"]
    assert not any([template["metadata"]["annotations"], pod["nodeSelector"], pod["tolerations"], pod["containers"][0]["resources"]])


@pytest.mark.parametrize(
    "wrong",
    [{"image": ""}, {"pfs": ""}, {"pfs": "relative"}, {"pfs": "/a: b"}, {"image": "x\ny"}, {"pfss": "/lustre"}, {"resources": {"memory": "1Gi"}}],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(jsonschema.ValidationError):
        values(**{"image": "forebay:1", "pfs": "/lustre", **wrong})


def test_helm_takes_the_chart(tmp_path):
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    (tmp_path / "values.yml").write_text(yaml.safe_dump(GIVEN))
    # A Helm that was built from its sources takes the cluster for one of 1.20.
    command = [helm, "template", "forebay", CHART, "--kube-version", "1.30.0", "--namespace", "tiers", "--values", tmp_path / "values.yml"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert yaml.safe_load(said) == render(tmp_path, **GIVEN)
    refused = subprocess.run([helm, "template", "forebay", CHART, "--set", "image=forebay:1"], check=False, capture_output=True, text=True)
    assert refused.returncode != 0 and "pfs" in refused.stderr
