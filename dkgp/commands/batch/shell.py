"""The fixed parts of the batch script, as bash.

They read the variables that `dkgp.commands.batch.script` writes before them: `python`, `command`, `resume_after`,
`max_requeues` and `interface`.
"""

from __future__ import annotations

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
# As many threads as were asked for, whether or not the site binds jobs to their cores.
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
