# SPDX-License-Identifier: Apache-2.0
"""The manifests of examples/kubernetes: the fields that Kubernetes and JobSet require, names that fit each other,
and the JobSet's pods on two hosts with the manifest's own environment. What the manifests promise stands in
docs/launching.md.

Needs PyYAML; the pods need root (scripts/slurm-two-nodes --hosts).
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, Skip, run, test

try:
    import yaml
except ImportError:
    yaml = None

FOLDER = SOURCE / "examples/kubernetes"
PAGE = (SOURCE / "docs/launching.md").read_text()
NOT_HERE = 77  # status of scripts/slurm-two-nodes

# What the API servers require or allow here: a type, a tuple of allowed values, a list of one kind of item, or a dict
# of fields, all required but those that end in "?"; "*": any other field of this kind. Other fields are refused.
CODES = {"operator": ("In", "NotIn"), "values": [int], "containerName?": str}
CONTAINER = {"name": str, "image": str, "command": [str], "args": [str], "env": [{"name": str, "value": str}],
             "volumeMounts": [{"name": str, "mountPath": str, "readOnly?": bool}]}
POD = {"spec": {"restartPolicy": ("Never",), "terminationGracePeriodSeconds": int, "subdomain?": str,
                "containers": [CONTAINER],
                "volumes": [{"name": str, "persistentVolumeClaim?": {"claimName": str},
                             "secret?": {"secretName": str}}]}}
JOB_SPEC = {"completionMode": ("Indexed",), "completions": int, "parallelism": int, "backoffLimit": int,
            "podFailurePolicy": {"rules": [{"action": ("Ignore", "FailJob", "FailIndex", "Count"), "onExitCodes?": CODES,
                                            "onPodConditions?": [{"type": str, "status?": str}]}]},
            "template": POD}
SCHEMAS = {
    ("v1", "Service"): {"metadata": {"name": str},
                        "spec": {"clusterIP": ("None",), "publishNotReadyAddresses": bool, "selector": {"*": str}}},
    ("batch/v1", "Job"): {"metadata": {"name": str}, "spec": JOB_SPEC},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "metadata": {"name": str},
        "spec": {"network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
                 "failurePolicy": {"maxRestarts": int, "rules": [
                     {"name": str, "action": ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                      "onJobFailureReasons": [("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                                               "MaxFailedIndexesExceeded", "PodFailurePolicy")]}]},
                 "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": JOB_SPEC}}]}},
}


def mistakes(value, schema, path=""):
    """Where a value is not as its schema says."""
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{path} is {value!r}, not one of {', '.join(schema)}"]
    if isinstance(schema, list):
        return ([m for k, item in enumerate(value) for m in mistakes(item, schema[0], f"{path}[{k}]")]
                if isinstance(value, list) and value else [f"{path} is no list"])
    if not isinstance(schema, dict):
        return [] if type(value) is schema else [f"{path} is {value!r}, no {schema.__name__}"]
    if not isinstance(value, dict):
        return [f"{path} has no fields"]
    known = {name.rstrip("?"): kind for name, kind in schema.items()}
    found = [f"{path}.{name} is missing" for name in schema if name[-1] not in "?*" and name not in value]
    found += [f"{path}.{name} is unknown" for name in value if name not in known and "*" not in known]
    return found + [m for name, item in value.items() if name in known or "*" in known
                    for m in mistakes(item, known.get(name, known.get("*")), f"{path}.{name}")]


def documents(name):
    if yaml is None:
        raise Skip("no PyYAML (apt-get install python3-yaml)")
    return [d for d in yaml.safe_load_all((FOLDER / name).read_text())]


def all_mistakes(document):
    kind = document.pop("apiVersion", None), document.pop("kind", None)
    return mistakes(document, SCHEMAS[kind], kind[1]) if kind in SCHEMAS else [f"{kind} is unknown"]


def container_of(job):
    return job["template"]["spec"]["containers"][0]


def variables_of(job):
    return {v["name"]: v["value"] for v in container_of(job)["env"]}


def jobs():
    """(spec of a Job, name of pod 0, rendezvous) of each manifest."""
    service, job = documents("train.yaml")
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["selector"] == {
        "job-name": job["metadata"]["name"]}
    yield (job["spec"], f"{job['metadata']['name']}-0.{pod['subdomain']}",
           re.search(r"--rendezvous (\S+)", container_of(job["spec"])["args"][0]).group(1))
    jobset, = documents("jobset.yaml")
    job, = jobset["spec"]["replicatedJobs"]
    yield (job["template"]["spec"], f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['spec']['network']['subdomain']}",
           variables_of(job["template"]["spec"])["PET_RDZV_ENDPOINT"])


@test
def the_manifests_have_the_fields_that_their_kinds_require():
    for name in ("train.yaml", "jobset.yaml"):
        for document in documents(name):
            assert (found := all_mistakes(document)) == [], f"{name}: {found}"


@test
def a_missing_a_misspelt_and_a_wrong_field_are_found():
    jobset, = documents("jobset.yaml")
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    del spec["completions"]
    spec["paralelism"] = spec.pop("parallelism")
    spec["template"]["spec"]["restartPolicy"] = "Always"  # a Job with a podFailurePolicy allows Never only
    found = "\n".join(all_mistakes(jobset))
    for part in ("completions is missing", "parallelism is missing", "paralelism is unknown", "is 'Always'"):
        assert part in found, found


@test
def pods_meet_at_the_name_of_pod_0_and_use_what_is_set_and_mounted():
    for spec, pod_0, rendezvous in jobs():
        pod, script, variables = spec["template"]["spec"], container_of(spec)["args"][0], variables_of(spec)
        nodes = variables.get("PET_NNODES") or re.search(r"--nnodes (\d+)", script).group(1)
        assert spec["completions"] == spec["parallelism"] == int(nodes)
        assert rendezvous == f"{pod_0}:29400"
        used = set(re.findall(r"\$\{?([A-Z]+)\b", script)) - {"OPTIONS"}  # which may be empty
        assert used <= set(variables), used - set(variables)
        mounts = {m["name"]: m["mountPath"] for m in container_of(spec)["volumeMounts"]}
        assert set(mounts) == {v["name"] for v in pod["volumes"]}
        assert variables["SECRET"].startswith(mounts["secret"]) and variables["DATA"].startswith(mounts["data"])


@test
def statuses_are_treated_as_the_page_says():
    actions = {"complete": None, "`Ignore`": "Ignore", "`FailJob`": "FailJob"}
    for spec, _, _ in jobs():
        rules = {status: rule["action"] for rule in spec["podFailurePolicy"]["rules"]
                 for status in rule.get("onExitCodes", {}).get("values", [])}
        said = {int(status): action for statuses, words in re.findall(r"^\| ([\d, ]+) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
                for status in statuses.split(",") for word, action in actions.items() if word in words and action}
        assert rules == said, (rules, said)


# ---- the pods of the JobSet ---------------------------------------------------------------------

# On node 1. The pods share the working folder, as their volume; a line of hosts stands for the headless service.
PODS = """
echo 10.98.0.1 train-node-0-0.train >>$TWO_NODES/hosts; lockstep secret secret
pod() { $TWO_NODES/on $(($1+1)) env JOB_COMPLETION_INDEX=$1 sh -c "$SCRIPT"; }
both() { pod 0 >0.out 2>&1 & P=$!; pod 1 >1.out 2>&1 & Q=$!; }
ended() { wait $P; p=$?; wait $Q; echo pods ended: $p $?; }
both; until [ "$(cat run.losses 2>/dev/null | wc -l)" -gt 50 ]; do sleep 0.1; done
kill -TERM $(pgrep -P $Q || echo $Q); ended; both; ended; cat 0.out
"""


@test
def the_pods_of_the_job_set_meet_by_their_environment_and_go_on_after_a_drain():
    spec = list(jobs())[1][0]
    with tempfile.TemporaryDirectory(prefix="lockstep-jobset-", dir="/var/tmp") as folder:
        pathlib.Path(folder, "text").write_text("\n".join(map(str, range(3000))))
        variables = dict(variables_of(spec), PET_NPROC_PER_NODE="2", DATA="text", RUN="run", STEPS="2000", SECRET="secret",
                         OPTIONS="--layers 1 --dim 32 --heads 2 --context 32 --batch 2", HOME=folder,
                         SCRIPT=container_of(spec)["args"][0], PATH=f"{BUILD}:{os.environ['PATH']}")
        done = subprocess.run([SOURCE / "scripts/slurm-two-nodes", "--hosts", "bash", "-c", PODS], cwd=folder, text=True,
                              env=dict(os.environ, **variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120)
        if done.returncode == NOT_HERE:
            raise Skip(done.stdout)
        assert "pods ended: 75 75\n" in done.stdout and "pods ended: 0 0\n" in done.stdout, done.stdout
        losses = pathlib.Path(folder, "run.losses").read_text().splitlines()
        assert [line.split()[0] for line in losses] == [str(step) for step in range(1, 2001)], losses[-3:]


run()
