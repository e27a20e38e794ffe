#!/usr/bin/env bash
# Power cuts under the real binary and real programs. The daemon runs on devices that lose what was not flushed when it
# dies (crates/device/src/kinds/volatile.rs), so that kill -9 is a power cut: unflushed sectors are lost, kept or torn at 512
# bytes, in any order. A log writer, SQLite and git, each with fsync, run beside a load that never syncs; after
# each cut what they were told is durable must be there, and the pool must scrub clean.
#   scripts/power-cut.sh TERRACE-BINARY [ROUNDS] [SEED] [postgres]      with PostgreSQL too, if it is installed
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/durable-writers.sh
scratch_begin "$1"
trap 'postgres_kill; scratch_end' EXIT
ROUNDS=${2:-5} SEED=${3:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$((SEED % 32768))
printf 'power cuts: seed %d\n' "$SEED"
export TERRACE_TEST_VOLATILE_DEVICES=$SEED
churn() {
    while not_cut && cp -r scripts docs crates/codec "$MOUNT/churn" 2>/dev/null && mv "$MOUNT/churn" "$MOUNT/moved" 2>/dev/null &&
        rm -r "$MOUNT/moved" 2>/dev/null; do mkdir -p "$MOUNT/churn" 2>/dev/null || return; done
}

scratch_pool 512M 1G || { failed 1 "power cut: no mount"; exit 1; }
writers_prepare "$MOUNT" || { failed 1 "power cut: no room for what the writers need"; exit 1; }
if [ "${4:-}" = postgres ]; then
    postgres_prepare "$MOUNT/postgres" || { failed 1 "power cut: no PostgreSQL server can be had: $(tail -n 1 "$SCRATCH/initdb" 2>/dev/null)"; exit 1; }
fi

for round in $(seq 1 "$ROUNDS"); do
    mkdir -p "$MOUNT/churn"
    pid=$(scratch_daemon)
    [ -n "$pid" ] || { failed 1 "round $round: status does not name the daemon"; exit 1; }
    writers_start || { failed 1 "round $round: the writers do not start"; exit 1; }
    first=$(number_in lines)
    churn & WRITERS+=($!)
    target=$((first + 20 + RANDOM % 60))
    while [ "$(number_in lines)" -lt "$target" ] && kill -0 "${WRITERS[0]}" 2>/dev/null; do sleep 0.02; done
    cut_now "$pid"
    postgres_kill
    # Programs that had files of the mount mapped die of it, as they would with the machine.
    wait "${WRITERS[@]}" 2>/dev/null
    export TERRACE_TEST_VOLATILE_DEVICES=$((SEED + round))
    timeout 60 "$TERRACE" start "$POOL" || { failed 1 "round $round: the pool does not start"; exit 1; }
    mountpoint -q "$MOUNT" || { failed 1 "round $round: the mount did not come back"; exit 1; }
    missing=$(writers_check) || { failed 1 "round $round: $missing"; exit 1; }
    rm -rf "$MOUNT/churn" "$MOUNT/moved"
    printf 'round %d: %s (%d new lines): all there\n' "$round" "$(writers_told)" $(($(number_in lines) - first))
done
postgres_kill
timeout 120 "$TERRACE" scrub "$POOL" --wait || { failed 1 "scrub after $ROUNDS power cuts"; exit 1; }
passed 1
