"""The fixed parts of the batch script, as bash.

They read the variables that `dkgp.commands.batch` writes before them: `python`, `command`, `resume_after`,
`max_requeues` and `interface`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dkgp.commands.recipe import RECIPES, recipe_called
from dkgp.errors import UsageError
from dkgp.options import options_of

PREAMBLE = """

# Written by dkgp. Submit with `sbatch FILE`; the job checkpoints before its time is up, requeues itself and goes on.
set -euo pipefail
say() { echo "dkgp batch script: $*" >&2; }
stop_cluster() { :; }

# SLURM sends USR1 to this script alone, ahead of the end: SIGTERM has dkgp finish its round and save a checkpoint.
dkgp=''
signals=0
warned=0
forwarded=0
forward() { if (( ! forwarded )) && [[ -n "$dkgp" ]]; then forwarded=1; kill -TERM "$dkgp" 2> /dev/null || :; fi; }
trap 'signals=$((signals + 1)); warned=1; forward' USR1
"""

ONE_NODE = """
# As many threads as requested, whether or not the site binds jobs to their cores.
command+=(--cluster local --workers 1 --threads-per-worker "${SLURM_CPUS_PER_TASK:-1}")
"""

SEVERAL_NODES = r"""
# A Dask scheduler here and one worker on each node. Every user of the site can reach their ports, so they talk TLS with
# a certificate of this run alone, in a folder that only this user can read and that all nodes see.
if ! command -v openssl > /dev/null; then
    say "openssl is not on PATH; it makes the certificates for Dask on several nodes. Load it in the setup file"
    exit 2
fi
folder=$(mktemp -d "$PWD/.dkgp-$SLURM_JOB_ID.XXXXXX")
cluster=()
stop_cluster() {
    if ! [[ -d "$folder" ]]; then return; fi
    if (( ${#cluster[@]} )); then
        kill -KILL "${cluster[@]}" 2> /dev/null || :  # they block TERM; SLURM ends the workers of a lost srun
        wait "${cluster[@]}" 2> /dev/null || :
    fi
    # If the cluster was lost, the last lines of its processes.
    if (( code == 5 )); then tail -n 20 "$folder"/*.log >&2 || :; fi
    rm -rf "$folder" || :
}
code=0
trap stop_cluster EXIT
openssl req -x509 -newkey rsa:2048 -nodes -days 400 -subj "/CN=dkgp job $SLURM_JOB_ID" \
    -keyout "$folder/key.pem" -out "$folder/certificate.pem" 2> "$folder/openssl.log" \
    || { cat "$folder/openssl.log" >&2; exit 2; }
rm "$folder/openssl.log"
# By environment: a scheduler that has certificates among its options takes no interface.
tls=DASK_DISTRIBUTED__COMM__TLS__
certified=(env DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True "${tls}CA_FILE=$folder/certificate.pem")
for role in SCHEDULER WORKER; do
    certified+=("$tls${role}__CERT=$folder/certificate.pem" "$tls${role}__KEY=$folder/key.pem")
done
# As the grace time of a preempted job begins, SLURM signals the workers and not this script. They block TERM, so that
# dkgp can finish its round and save a checkpoint. The workers' shells pass the signal on to this script.
worker_shell='
trap "scancel --batch --signal=USR1 $SLURM_JOB_ID" TERM
"$@" &
while kill -0 $! 2> /dev/null; do wait $! || :; done
'
dask=("${certified[@]}" "$python" -P -c "import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])" -P -m)
shared=(--scheduler-file "$folder/scheduler.json" --protocol tls)
if [[ -n "$interface" ]]; then shared+=(--interface "$interface"); fi
"${dask[@]}" distributed.cli.dask_scheduler "${shared[@]}" --port 0 --dashboard-address 127.0.0.1:0 \
    > "$folder/scheduler.log" 2>&1 &
cluster+=($!)
for (( tenths = 0; tenths < 1200; tenths++ )); do
    if [[ -s "$folder/scheduler.json" ]]; then break; fi
    if ! kill -0 "${cluster[0]}" 2> /dev/null; then break; fi
    sleep 0.1
done
if ! [[ -s "$folder/scheduler.json" ]]; then
    say "the Dask scheduler did not start; it says:"
    code=5
    exit "$code"
fi
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --output="$folder/worker-%t.log" \
    bash -c "$worker_shell" bash "${dask[@]}" distributed.cli.dask_worker "${shared[@]}" \
    --nworkers 1 --nthreads "$SLURM_CPUS_PER_TASK" --memory-limit 0 --no-dashboard --dashboard-address 127.0.0.1:0 \
    --preload dkgp.operators.preload --death-timeout 120 --local-directory "${TMPDIR:-/tmp}" 2> "$folder/srun.log" &
cluster+=($!)
command+=(--scheduler-file "$folder/scheduler.json")
command+=(--tls-ca "$folder/certificate.pem" --tls-cert "$folder/certificate.pem" --tls-key "$folder/key.pem")
"""

RUN = r"""
requeued=${SLURM_RESTART_COUNT:-0}
if (( requeued >= resume_after )); then command+=(--resume); fi

# TERM (scancel, the walltime itself) reaches dkgp directly; a second one from here would end it without a checkpoint.
trap 'signals=$((signals + 1)); forwarded=1' TERM
if (( warned )); then command=(exit 143); fi  # by a signal that came before dkgp could start
"${command[@]}" &
dkgp=$!
if (( warned )); then forward; fi  # by a signal that came before its number was known
code=0
wait "$dkgp" || code=$?
# A signal cuts `wait` short; bash keeps the code of a process that has ended for the next one.
seen=0
while (( seen < signals )); do
    seen=$signals
    code=0
    wait "$dkgp" || code=$?
done

stop_cluster
# 143: the signal came before dkgp could handle it, while Python started.
if (( warned && (code == 130 || code == 143) )); then
    # A job that its user cancels in the meantime is not RUNNING any more, and stays cancelled.
    state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T 2> /dev/null || :)
    if [[ "$state" == RUNNING ]]; then
        if (( requeued < max_requeues )); then
            say "out of time; requeueing to go on from the checkpoint ($((requeued + 1)) of at most $max_requeues)"
            scontrol requeue "$SLURM_JOB_ID"
        else
            say "out of time, and requeued $requeued times already; submit again with --resume"
        fi
    fi
fi
exit "$code"
"""


# Settings of the script itself, not of SLURM, with their defaults.
OWN_SETTINGS: Mapping[str, str] = {"max-requeues": "50", "setup": "", "interface": ""}

DEFAULTS: Mapping[str, str] = {
    "nodes": "1",
    "cpus-per-task": "8",
    "mem": "16G",
    "time": "04:00:00",
    "signal": "B:USR1@120",
    "open-mode": "append",  # a requeued run appends to the same file
    "requeue": "",
}

# SLURM's default lead time of a signal.
DEFAULT_LEAD_SECONDS = 60

_MEMORY_SETTINGS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
_REFUSED: Mapping[str, str] = {
    "array": "every task of the array would write the same output; submit one job for each output",
    "job-name": "name the job by its name instead",
    "no-requeue": "a job that cannot be requeued cannot go on after its walltime; set max-requeues=0 instead",
    "ntasks": "dkgp starts one worker on each node; set nodes and cpus-per-task",
    "ntasks-per-node": "dkgp starts one worker on each node; set nodes and cpus-per-task",
    "parsable": "it is an option of sbatch itself, not of the job",
    "test-only": "it is an option of sbatch itself, not of the job",
    "wait": "it is an option of sbatch itself, not of the job",
    "wrap": "the script runs dkgp",
}
SBATCH_SECONDS = 120.0


def batch_script(command: Sequence[str], *, name: str, settings: Mapping[str, str], resume: bool) -> str:
    """Write the script that runs a command.

    Raises `UsageError`: SLURM or bash could misread a name or setting, or the time limit is within the signal's lead
    time. Also raised if the command cannot run on several nodes.

    Parameters
    ----------
    command : sequence of str
        The command line, beginning with `dkgp` or its first argument. This Python runs it, so the job needs no
        activated environment. Relative paths are relative to the folder of submission.
    name : str
        Name of the job.
    settings : mapping of str to str
        Long options of `sbatch` without their dashes, such as `{"time": "12:00:00", "partition": "long"}`. An option
        without a value is "". The script has three settings of its own. `max-requeues` limits how often the job may
        requeue itself. `setup` is a file to source first (`module load ...`). `interface` is the network interface
        for Dask on several nodes.
    resume : bool
        Whether the first run also resumes from a checkpoint.

    Returns
    -------
    str
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(
            f"{name!r} cannot name a SLURM job; use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    arguments = _arguments(command)
    directives, own = _checked(settings, name)
    nodes = directives["nodes"]
    several = nodes != "1"
    recipe = recipe_called(arguments)
    called = arguments[0] if recipe is None else recipe.name
    takes_cluster = recipe is not None and recipe.as_job and recipe.on_cluster
    chooses_cluster = any(argument.split("=")[0] in cluster_flags() for argument in arguments)
    if several and not takes_cluster:
        raise UsageError(f"dkgp {called} runs on one node; got nodes={nodes}. Leave nodes out")
    if several and chooses_cluster:
        raise UsageError(
            f"nodes={nodes} starts a Dask cluster on these nodes, but the command names another cluster. Leave "
            "out nodes, or the command's cluster options"
        )
    resumable = recipe is not None and recipe.as_job and recipe.resumes
    if resume and not resumable:
        resuming = sorted(name for name, each in RECIPES.items() if each.as_job and each.resumes)
        raise UsageError(f"dkgp {called} cannot resume; only {', '.join(resuming)} can")
    arguments = [argument for argument in arguments if argument != "--resume"] if resumable else arguments
    resumes_first = resume or (resumable and "--resume" in command)
    header = [f"#SBATCH --{key}={value}" if value else f"#SBATCH --{key}" for key, value in directives.items()]
    variables = [
        f"python={shlex.quote(sys.executable)}",
        # -P: Python does not import a file in the working directory in place of a module.
        f'command=("$python" -P -m dkgp {shlex.join(arguments)})',
        f"resume_after={_resume_after(resumable, resumes_first)}",
        # A command without checkpoints starts over after each time limit and would never finish.
        f"max_requeues={own['max-requeues'] if recipe is not None and recipe.declaration.goes_on else 0}",
        f"interface={shlex.quote(own['interface'])}",
    ]
    parts = ["\n".join(["#!/bin/bash", *header]), PREAMBLE, "\n".join(variables)]
    if own["setup"]:
        # The set-up files of many sites use unset variables.
        parts.append(f"set +u\nsource {shlex.quote(own['setup'])}\nset -u")
    if several:
        parts.append(SEVERAL_NODES)
    elif takes_cluster and not chooses_cluster:
        parts.append(ONE_NODE)
    parts.append(RUN)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def cluster_flags() -> set[str]:
    """Return the flags that name a command's cluster. The flag for kept tiles is excluded: it fits any cluster."""
    from dkgp.cluster import ClusterOptions

    options = options_of(ClusterOptions)
    return {flag for name, option in options.items() if name != "cache_tiles" for flag in option.flags}


def submit_batch_script(script: str, folder: str | Path) -> str:
    """Submit a script to SLURM.

    Raises `UsageError`: `sbatch` is not installed, the folder does not exist, or SLURM rejects the script. The message
    quotes SLURM.

    Parameters
    ----------
    folder : path
        Folder in which the job runs and writes its output file. SLURM keeps a copy of the script.

    Returns
    -------
    str
        SLURM's job id.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"the folder '{folder}' to submit from does not exist; create it or name another")
    try:
        answer = subprocess.run(
            ["sbatch", "--parsable"],
            input=script,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SBATCH_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(
            "there is no `sbatch` on this machine's PATH; submit from a login node of a SLURM cluster, or write "
            "the script to a file and submit that file there"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"sbatch has not answered for {SBATCH_SECONDS:.0f} s. Before you submit again, check whether SLURM "
            "works (`sinfo`) and whether the job is in the queue (`squeue --me`)"
        ) from None
    # The job id, followed by the cluster's name if SLURM has several clusters.
    identifier = answer.stdout.strip().split(";")[0]
    if answer.returncode != 0 or not identifier.isdigit():
        answer_text = (answer.stderr.strip() or answer.stdout.strip()) or f"nothing, exit code {answer.returncode}"
        raise UsageError(f"SLURM refused the job; sbatch says: {answer_text}. Change the settings that it names")
    return identifier


def _arguments(command: Sequence[str]) -> list[str]:
    arguments = [str(argument) for argument in command]
    if arguments and Path(arguments[0]).name == "dkgp":
        arguments = arguments[1:]
    if not arguments:
        raise UsageError("there is no command to run; expected for example `train DATASET --out MODEL`")
    for argument in arguments:
        if "\n" in argument or "\0" in argument:
            raise UsageError(
                f"the argument {argument!r} contains a line break, which a batch script cannot contain; rename it"
            )
    return arguments


def _checked(settings: Mapping[str, str], name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return sbatch's options, job name and defaults included, and the script's own settings."""
    for key, value in settings.items():
        _check_setting(key, str(value))
    given = {key: str(value) for key, value in settings.items()}
    own = {key: given.pop(key, default) for key, default in OWN_SETTINGS.items()}
    if not re.fullmatch(r"\d{1,6}", own["max-requeues"]):
        raise UsageError(f"max-requeues must be a whole number, 0 or more; got {own['max-requeues']!r}")
    defaults = {key: value for key, value in DEFAULTS.items() if key not in given}
    if _MEMORY_SETTINGS & given.keys():
        defaults.pop("mem", None)
    directives = {"job-name": name, **defaults, "output": f"{name}-%j.out", **given}
    for count in ("nodes", "cpus-per-task"):
        if not re.fullmatch(r"[1-9]\d{0,5}", directives[count]):
            raise UsageError(f"{count} must be a whole number, 1 or more; got {directives[count]!r}")
    signal = re.fullmatch(r"B:(SIG)?USR1(@(\d{1,5}))?", directives["signal"])
    if signal is None:
        raise UsageError(
            f"the script needs the signal B:USR1@SECONDS, sent SECONDS before the end; got {directives['signal']!r}"
        )
    lead_seconds = int(signal[3] or DEFAULT_LEAD_SECONDS)
    for limit in ("time", "time-min"):
        seconds = _time_seconds(directives.get(limit, ""))
        if seconds is not None and seconds <= lead_seconds:
            raise UsageError(
                f"{limit}={directives[limit]} is {seconds} s, but SLURM warns the job {lead_seconds} s before its end, "
                f"so that it would stop as soon as it starts. Set {limit} to more than {lead_seconds} s, or a shorter "
                "signal=B:USR1@SECONDS"
            )
    return directives, own


def _time_seconds(limit: str) -> int | None:
    """Return a SLURM time limit in seconds; None for no limit, and for text that only SLURM can parse."""
    days, dash, rest = limit.rpartition("-")
    if not re.fullmatch(r"\d*", days) or not re.fullmatch(r"\d+(:\d+){0,2}", rest):
        return None
    parts = [int(part) for part in rest.split(":")]
    # After days, the first part is hours. Otherwise a single part, or the first of two, is minutes.
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = sum(part * unit for part, unit in zip(parts, units, strict=False)) + 86_400 * int(days or 0)
    return seconds or None


def _check_setting(key: str, value: str) -> None:
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", key):
        raise UsageError(
            f"{key!r} is no SLURM setting; expected a long option of sbatch without its dashes, such as partition"
        )
    if key in _REFUSED:
        raise UsageError(f"the SLURM setting {key} cannot be used: {_REFUSED[key]}")
    if not value.isprintable():
        raise UsageError(f"the SLURM setting {key} contains a line break or control character: {value!r}; remove it")
    # sbatch splits a directive at blanks and treats text after '#' as a comment.
    if key not in OWN_SETTINGS and (re.search(r"[\s#\"'\\]", value) or value.startswith("-")):
        raise UsageError(
            f"the SLURM setting {key} is {value!r}; blanks, quotes, '#', backslashes and a leading '-' would be "
            "misread there"
        )


def _resume_after(resumable: bool, at_once: bool) -> int:
    """Return the number of requeues after which the job resumes; an unreachable number means never."""
    if not resumable:
        return 1_000_000_000
    return 0 if at_once else 1
