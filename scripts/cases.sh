# shellcheck shell=bash
# The cases of a script that tries a real pool: functions `case_NAME`, of which each passes (0), fails or is skipped (77), in
# a shell of its own. Sourced, not run, after scripts/stage.sh and scripts/scratch-pool.sh.

# Fails, and notes the reason, if one of the programs is not here: `needs fio xfs_repair || return 77`.
needs() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { skip_because "no $program"; return 1; }
    done
}
# It is told with the case's name.
skip_because() { echo "$*" >"$SCRATCH/skip"; }

# Ends the daemon the hard way.
kill_daemon() {
    local pid
    pid=$(scratch_daemon)
    [ -n "$pid" ] || { echo "no daemon pid in status --json"; return 1; }
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null && [ "$(sed 's/.*) \(.\).*/\1/' "/proc/$pid/stat" 2>/dev/null)" != Z ]; do sleep 0.05; done
}

# Runs the cases of those names; whether none failed.
run_cases() {
    local name began bad=0
    for name in "$@"; do
        began=$SECONDS
        rm -f "$SCRATCH/skip"
        # What it did last says where it failed.
        (exec 9>"$SCRATCH/case.trace" && BASH_XTRACEFD=9 && set -x && "case_$name") >"$SCRATCH/case.out" 2>&1
        case $? in
        0) passed 1; printf 'ok      %-36s %3d s\n' "$name" $((SECONDS - began)) ;;
        77) skipped 1 "$name: $(cat "$SCRATCH/skip" 2>/dev/null || echo 'a tool is missing')" ;;
        *) bad=1; tail -n 20 "$SCRATCH/case.out"; tail -n 6 "$SCRATCH/case.trace"; failed 1 "$name" ;;
        esac
    done
    return "$bad"
}
