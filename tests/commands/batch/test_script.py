"""The SLURM batch script, run by a real bash with stand-ins for SLURM's commands and for dkgp itself.

tests/system/test_slurm.py runs it on a real SLURM.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dkgp.cli.group import main
from dkgp.cli.job_commands import JOB_COMMANDS
from dkgp.cli.service import of_cluster
from dkgp.commands.batch import (
    OWN_SETTINGS,
    batch_script,
    cluster_flags,
    submit_batch_script,
)
from dkgp.commands.recipe import RECIPES
from dkgp.errors import UsageError

TRAIN = ["dkgp", "train", "/data/train.zarr", "--out", "/data/model.zarr", "--hyper", "/data/hyper.json"]
DEADLINE_SECONDS = 240.0

# Stands for Python: notes its arguments, one a line; as dkgp it ends as told, after a signal if it is to wait for one.
PYTHON = r"""#!/bin/bash
if [[ "$2" == -c ]]; then shift 3; fi  # blocks TERM and starts Python again with the other arguments
case "$3" in
distributed.cli.dask_scheduler)
    printf '%s\n' "$@" > "$NOTES/scheduler"
    env | grep ^DASK_ | sort > "$NOTES/scheduler-settings"
    if [[ -n "${SCHEDULER_FAILS:-}" ]]; then echo "no port to be had"; exit 1; fi
    while (( $# )) && [[ "$1" != --scheduler-file ]]; do shift; done
    stat --format=%a "$(dirname "$2")" > "$NOTES/folder-mode"
    stat --format=%a "$(dirname "$2")/key.pem" > "$NOTES/key-mode"
    dirname "$2" > "$NOTES/folder"
    openssl x509 -in "$(dirname "$2")/certificate.pem" -noout -subject > "$NOTES/subject"
    echo '{"address": "tls://here:1"}' > "$2"
    exec sleep 60 ;;
dkgp)
    printf '%s\n' "$@" > "$NOTES/dkgp"
    # A run waits for its workers.
    [[ ! -e "$NOTES/scheduler" ]] || while [[ ! -s "$NOTES/srun" ]]; do sleep 0.02; done
    trap 'echo TERM >> "$NOTES/signals"; (( waits )) || exit "$CODE"; waits=0' TERM
    waits=${WAITS:-0}
    echo $$ > "$NOTES/started"
    if (( waits )); then
        while (( waits )); do sleep 0.02; done
        sleep 0.2  # a second signal would be noticed
    fi
    exit "$CODE" ;;
esac
"""
SRUN = '#!/bin/bash\nprintf "%s\\n" "$@" > "$NOTES/srun"\nexec sleep 60\n'
SCONTROL = '#!/bin/bash\necho "$@" >> "$NOTES/scontrol"\n'
SQUEUE = '#!/bin/bash\necho "$STATE"\n'


@dataclass
class Site:
    """Stand-ins on a PATH, what they noted, and how to run a script among them."""

    folder: Path
    notes: Path
    environment: dict[str, str]

    def start(self, script: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, **variables: str) -> tuple[int, str]:
        process = self.start(script, **variables)
        _, stderr = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, stderr

    def warned(self, script: str, **variables: str) -> tuple[int, str]:
        """Run it, and signal as SLURM does ahead of the walltime: the script alone."""
        process = self.start(script, WAITS="1", **variables)
        self.until("started", process)
        process.send_signal(signal.SIGUSR1)
        _, stderr = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, stderr

    def until(self, name: str, process: subprocess.Popen[str]) -> None:
        until = time.monotonic() + DEADLINE_SECONDS
        while not (self.notes / name).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, f"no {name}"
            time.sleep(0.01)

    def noted(self, name: str) -> list[str]:
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # Places that a script without quotes would trip over.
    programs, notes = tmp_path / "it's a $PATH", tmp_path / "notes"
    programs.mkdir()
    notes.mkdir()
    for name, text in (("python", PYTHON), ("srun", SRUN), ("scontrol", SCONTROL), ("squeue", SQUEUE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NOTES": str(notes),
        "CODE": "0",
        "STATE": "RUNNING",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "7",
    }
    return Site(tmp_path, notes, environment)


def script(command: list[str] = TRAIN, resume: bool = False, **settings: str) -> str:
    chosen = {name.replace("_", "-"): value for name, value in settings.items()}
    return batch_script(command, name="fit", settings=chosen, resume=resume)


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH --(.*)$", text, flags=re.MULTILINE)


# ------------------------------------------------------------------------------------------------- what is written


def test_the_defaults_leave_time_to_checkpoint_and_let_the_job_come_back() -> None:
    assert directives(script()) == [
        "job-name=fit",
        "nodes=1",
        "cpus-per-task=8",
        "mem=16G",
        "time=04:00:00",
        "signal=B:USR1@120",
        "open-mode=append",
        "requeue",
        "output=fit-%j.out",
    ]


def test_settings_replace_the_defaults_and_go_to_slurm_alone() -> None:
    found = directives(script(time="1-00", mem_per_cpu="2G", partition="long", exclusive="", max_requeues="3"))
    assert {"time=1-00", "mem-per-cpu=2G", "partition=long", "exclusive"} <= set(found)
    assert not any(line.startswith(("mem=", "max-requeues", "time=04")) for line in found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"time": "2"}, "time=2 is 120 s, but SLURM warns the job 120 s before its end"),
        ({"time": "2:00"}, "more than 120 s"),
        ({"time": "0-0:01:59"}, "is 119 s"),
        ({"time": "1", "signal": "B:USR1"}, "warns the job 60 s"),
        ({"time": "05:00:00", "signal": "B:USR1@18000"}, "is 18000 s"),
        ({"time-min": "00:01:00"}, "time-min=00:01:00 is 60 s"),
        ({"time": "1:00\n#SBATCH --uid=0"}, "line break"),
        ({"time": "1:00 --uid=0"}, "misread"),
        ({"comment": "#hidden"}, "misread"),
        ({"partition": "--uid=0"}, "misread"),
        ({"Time": "1"}, "long option of sbatch"),
        ({"time=1 --uid": "0"}, "long option of sbatch"),
        ({"--time": "1"}, "without its dashes"),
        ({"array": "0-9"}, "same output"),
        ({"ntasks": "4"}, "cpus-per-task"),
        ({"job-name": "other"}, "its name"),
        ({"no-requeue": ""}, "max-requeues=0"),
        ({"signal": "TERM@60"}, "B:USR1@SECONDS"),
        ({"nodes": "2-4"}, "whole number"),
        ({"nodes": "0"}, "whole number"),
        ({"cpus-per-task": "all"}, "whole number"),
        ({"max-requeues": "-1"}, "max-requeues must be a whole number"),
        ({"setup": "a\nb"}, "line break"),
    ],
)
def test_settings_that_slurm_or_bash_could_misread_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        batch_script(TRAIN, name="fit", settings=settings, resume=False)


@pytest.mark.parametrize(
    "limit", ["3", "2:01", "00:02:01", "0-1", "0-0:3", "1-00", "0", "0:00", "UNLIMITED", "never", "1-2-3"]
)
def test_times_that_leave_a_round_before_the_warning_and_all_others_are_slurms_matter(limit: str) -> None:
    assert f"time={limit}" in directives(script(time=limit))


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\n#SBATCH --uid=0", "a;b", "a/b", "%j"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a SLURM job"):
        batch_script(TRAIN, name=name, settings={}, resume=False)


def test_commands_that_cannot_do_what_is_asked_are_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        script(["dkgp"])
    with pytest.raises(UsageError, match="line break"):
        script([*TRAIN, "--plot", "a\nb.png"])
    with pytest.raises(UsageError, match="evaluate cannot resume"):
        script(["dkgp", "evaluate", "p.zarr", "t.zarr"], resume=True)
    with pytest.raises(UsageError, match="evaluate runs on one node"):
        script(["dkgp", "evaluate", "p.zarr", "t.zarr"], nodes="2")
    with pytest.raises(UsageError, match="the command names another"):
        script([*TRAIN, "--scheduler=tcp://a:1"], nodes="2")


def test_tuning_run_again_by_slurm_may_be_done_but_does_not_requeue_itself() -> None:
    """It has no checkpoint: out of time once, it would be out of time for ever."""
    text = script(["dkgp", "tune", "train.zarr", "--out", "hyper.json"])
    assert "resume_after=1\n" in text
    assert "max_requeues=0\n" in text
    assert "max_requeues=50\n" in script(TRAIN)


def test_recipes_and_the_command_line_agree() -> None:
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in main.commands.items()
        if name in ("train", "sparse", "classify", "tune", "predict", "evaluate", "fit")
    }
    assert {name for name in options if "--resume" in options[name]} == {
        name for name, recipe in RECIPES.items() if recipe.as_job and recipe.resumes and " " not in name
    }
    assert {name for name in options if "--cluster" in options[name]} == {
        name for name, recipe in RECIPES.items() if recipe.as_job and recipe.on_cluster and " " not in name
    }
    cluster = {
        option
        for parameter in main.commands["train"].params
        if parameter.name in of_cluster(JOB_COMMANDS["train"])
        for option in parameter.opts
    }
    # How much workers keep goes with any cluster, the script's own too.
    assert cluster - {"--cache-tiles"} == cluster_flags()


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_bash_and_shellcheck_have_nothing_against_it(nodes: str, tmp_path: Path) -> None:
    text = script(nodes=nodes, setup="/site/it's.sh", interface="ib0")
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    if shutil.which("shellcheck") is not None:
        linted = subprocess.run(["shellcheck", "-s", "bash", "-e", "SC1090,SC1091,SC2034", "-"], input=text, text=True)
        assert linted.returncode == 0


# -------------------------------------------------------------------------------------------------- how it runs dkgp


def test_every_argument_reaches_dkgp_as_it_is(site: Site) -> None:
    strange = ["it's", 'a "b"', "$HOME", "`x`", "*", "", "a\\nb", "--cluster=none"]
    assert site.run(script([*TRAIN, *strange])) == (0, "")
    assert site.noted("dkgp") == ["-P", "-m", "dkgp", *TRAIN[1:], *strange]


@pytest.mark.parametrize("code", [0, 3, 4, 5, 130, 143])
def test_the_job_ends_with_dkgps_own_code_and_is_not_requeued(site: Site, code: int) -> None:
    assert site.run(script(), CODE=str(code))[0] == code
    assert site.noted("scontrol") == []


def test_one_node_works_with_the_cores_asked_for(site: Site) -> None:
    site.run(script())
    assert site.noted("dkgp")[-6:] == ["--cluster", "local", "--workers", "1", "--threads-per-worker", "7"]
    site.run(script([*TRAIN, "--cluster", "none"]))
    assert "local" not in site.noted("dkgp")
    site.run(script(["dkgp", "evaluate", "p.zarr", "t.zarr"]))
    assert site.noted("dkgp") == ["-P", "-m", "dkgp", "evaluate", "p.zarr", "t.zarr"]


def test_a_requeued_run_resumes_and_the_first_one_only_if_asked_to(site: Site) -> None:
    asked = [*TRAIN, "--resume"]
    for text, restarts, expected in (
        (script(), None, 0),
        (script(), "1", 1),
        (script(resume=True), None, 1),
        (script(resume=True), "2", 1),
        (script(asked), None, 1),
        (script(["dkgp", "evaluate", "p.zarr", "t.zarr"]), "1", 0),
    ):
        site.run(text, **({} if restarts is None else {"SLURM_RESTART_COUNT": restarts}))
        assert site.noted("dkgp").count("--resume") == expected


def test_the_setup_file_is_sourced_although_it_uses_unset_variables(site: Site) -> None:
    setup = site.folder / "site's set-up.sh"
    setup.write_text('export CODE=4 EXTRA="$NOT_SET"\n')
    assert site.run(script(setup=str(setup)))[0] == 4
    assert site.run(script(setup=str(site.folder / "missing.sh")))[0] != 0


# ------------------------------------------------------------------------------------------------- the end of its time


@pytest.mark.parametrize("code", [130, 143])  # 143: the signal ended Python as it started
def test_a_warned_job_checkpoints_once_and_goes_back_to_the_queue(site: Site, code: int) -> None:
    ended, stderr = site.warned(script(), CODE=str(code))
    assert ended == code
    assert site.noted("signals") == ["TERM"]  # a second one would end dkgp without a checkpoint
    assert site.noted("scontrol") == ["requeue 12"]
    assert "1 of at most 50" in stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        ({"CODE": "0"}, {}),  # it had just finished
        ({"CODE": "4"}, {}),
        ({"CODE": "130", "STATE": "COMPLETING"}, {}),  # cancelled by its user in the meantime
        ({"CODE": "130", "STATE": ""}, {}),
        ({"CODE": "130"}, {"max_requeues": "0"}),
        ({"CODE": "130", "SLURM_RESTART_COUNT": "3"}, {"max_requeues": "3"}),
    ],
)
def test_a_warned_job_stays_ended_where_it_should(
    site: Site, variables: dict[str, str], settings: dict[str, str]
) -> None:
    code, stderr = site.warned(script(**settings), **variables)
    assert code == int(variables["CODE"])
    assert site.noted("scontrol") == []
    assert ("submit again with --resume" in stderr) == bool(settings)


def test_a_warning_while_dkgp_starts_is_not_lost(site: Site) -> None:
    """The signal comes between dkgp's start and the line that notes its number."""
    early = 'while [[ ! -e "$NOTES/started" ]]; do sleep 0.02; done; kill -USR1 $$; kill -USR1 $$\ndkgp=$!\n'
    text = script()
    assert text.count("dkgp=$!\n") == 1
    code, _ = site.run(text.replace("dkgp=$!\n", early), WAITS="1", CODE="130")
    assert code == 130
    assert site.noted("signals") == ["TERM"]


def test_a_warning_during_the_set_up_requeues_a_job_that_has_not_begun(site: Site) -> None:
    setup = site.folder / "setup.sh"
    setup.write_text("kill -USR1 $$\n")
    code, stderr = site.run(script(setup=str(setup)))
    assert code == 143
    assert site.noted("dkgp") == []
    assert site.noted("scontrol") == ["requeue 12"]
    assert "1 of at most 50" in stderr


def test_a_cancelled_job_is_not_signalled_twice(site: Site) -> None:
    """SLURM's own TERM goes to every process of the job; the script must wait for dkgp's checkpoint.

    The shell of a worker, which gets it too, passes it on to the script as a warning.
    """
    process = site.start(script(), WAITS="1", CODE="130")
    site.until("started", process)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGUSR1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert site.noted("signals") == []
    os.kill(int(site.noted("started")[0]), signal.SIGTERM)  # lets dkgp's stand-in go
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert site.noted("signals") == ["TERM"]


# ------------------------------------------------------------------------------------------------------ several nodes


@pytest.fixture
def openssl() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command `openssl`")


@pytest.mark.usefixtures("openssl")
def test_several_nodes_share_a_scheduler_behind_certificates_of_their_own(site: Site) -> None:
    assert site.run(script(nodes="3", interface="ib0"), CODE="4")[0] == 4
    folder = site.noted("folder")[0]
    certificates = [f"{folder}/certificate.pem", f"{folder}/key.pem"]
    command = site.noted("dkgp")
    expected = ["--scheduler-file", f"{folder}/scheduler.json", "--tls-ca", certificates[0]]
    assert command[-8:] == [*expected, "--tls-cert", certificates[0], "--tls-key", certificates[1]]
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    settings = ["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True", f"{tls}CA_FILE={certificates[0]}"]
    for role in ("SCHEDULER", "WORKER"):
        settings += [f"{tls}{role}__CERT={certificates[0]}", f"{tls}{role}__KEY={certificates[1]}"]
    assert site.noted("scheduler-settings") == settings
    assert set(settings) <= set(site.noted("srun"))
    for noted in ("scheduler", "srun"):
        assert not any(argument.startswith("--tls") for argument in site.noted(noted))
        assert site.noted(noted)[site.noted(noted).index("--interface") + 1] == "ib0"
    assert {"--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=7"} <= set(site.noted("srun"))
    assert (site.noted("folder-mode"), site.noted("key-mode")) == (["700"], ["600"])
    assert "dkgp job 12" in site.noted("subject")[0]
    assert not Path(folder).exists()  # keys do not outlive the job


@pytest.mark.usefixtures("openssl")
def test_a_warned_job_on_several_nodes_stops_them_before_it_requeues(site: Site) -> None:
    assert site.warned(script(nodes="3"), CODE="130")[0] == 130
    assert site.noted("scontrol") == ["requeue 12"]
    assert not Path(site.noted("folder")[0]).exists()


@pytest.mark.usefixtures("openssl")
def test_a_scheduler_that_does_not_start_ends_the_job_with_its_words(site: Site) -> None:
    code, stderr = site.run(script(nodes="3"), SCHEDULER_FAILS="1")
    assert code == 5
    assert stderr.splitlines()[-1] == "no port to be had"
    assert "....." not in stderr  # openssl's, while it looks for a key
    assert site.noted("dkgp") == []
    assert list(site.folder.glob(".dkgp-*")) == []


# ------------------------------------------------------------------------------------------------------------- sbatch


def fake_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(f"#!/bin/bash\n{body}\n")
    (programs / "sbatch").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


@pytest.mark.parametrize("answer", ["4711", "4711;main"])
def test_submitting_returns_slurms_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    fake_sbatch(tmp_path, monkeypatch, f'cat > received; echo "$@" > arguments; echo "{answer}"')
    assert submit_batch_script(script(), tmp_path) == "4711"
    assert (tmp_path / "received").read_text() == script()
    assert (tmp_path / "arguments").read_text() == "--parsable\n"


def test_what_sbatch_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path, monkeypatch, "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(UsageError, match="invalid partition specified: x"):
        submit_batch_script(script(), tmp_path)


def test_an_answer_without_an_id_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path, monkeypatch, "echo all is well")
    with pytest.raises(UsageError, match="all is well"):
        submit_batch_script(script(), tmp_path)


def test_without_sbatch_or_folder_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        submit_batch_script(script(), tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no `sbatch`.*login node"):
        submit_batch_script(script(), tmp_path)


def test_the_scripts_own_settings_are_documented() -> None:
    assert batch_script.__doc__ is not None
    assert all(f"`{name}`" in batch_script.__doc__ for name in OWN_SETTINGS)
