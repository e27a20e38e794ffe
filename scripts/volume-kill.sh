#!/usr/bin/env bash
# kill -9 of the daemon while programs work on ext4 on an attached volume: those of durable-writers.sh, who are told what
# is durable, and pgbench beside them. Each time the filesystem loses its disk; then the daemon is started, the device
# comes back by itself, ext4 replays its journal, PostgreSQL its own, and every committed row must be there, the
# balances of pgbench's tables must agree, and e2fsck must find nothing. With --power every kill is a power cut: the
# pool's devices lose what was not flushed (crates/device/src/kinds/volatile.rs).
#   scripts/volume-kill.sh TERRACE-BINARY [ROUNDS] [SEED] [--power]      10 rounds
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/durable-writers.sh
scratch_begin "$1"
ROUNDS=${2:-10} SEED=${3:-$RANDOM} POWER=${4:-}
RANDOM=$((SEED % 32768))
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] && command -v mkfs.ext4 >/dev/null && [ -c /dev/loop-control ] || { skipped 1 "volumes under kills: needs root, mkfs.ext4 and loop devices"; exit 0; }
trap 'postgres_kill; umount -l "$MOUNT" 2>/dev/null; timeout 60 "$TERRACE" detach "$POOL/disk" --force >/dev/null 2>&1; scratch_end' EXIT
printf 'volumes under kills: seed %d%s\n' "$SEED" "${POWER:+, power cuts}"
[ -z "$POWER" ] || export TERRACE_TEST_VOLATILE_DEVICES=$SEED

# Through ublk the programs would wait for the next daemon, instead of hearing of the end of this one.
device() { timeout 60 "$TERRACE" attach "$POOL/disk" --via loop 2>/dev/null || readlink -f "$DEVICE_LINK"; }
# Waits until nobody holds the disk that went away.
give_up_disk() {
    local waited=0
    while mountpoint -q "$MOUNT" && [ $((waited += 1)) -lt 100 ]; do umount "$MOUNT" 2>/dev/null || sleep 0.1; done
    mountpoint -q "$MOUNT" && umount -l "$MOUNT"
    return 0
}
balances() {
    postgres_ask "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
}

timeout 60 "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:1G" --tier "slow=$SCRATCH/slow.img:2G" &&
    timeout 60 "$TERRACE" volume create "$POOL/disk" --size 1G --sparse && DISK=$(timeout 60 "$TERRACE" attach "$POOL/disk" --via loop) &&
    mkfs.ext4 -q "$DISK" && mount -o discard "$DISK" "$MOUNT" && writers_prepare "$MOUNT" || { failed 1 "no ext4 on a volume"; exit 1; }
DEVICE_LINK=$DISK
if postgres_prepare "$MOUNT/postgres"; then
    "$HAVE_POSTGRES/pgbench" -q -i -s 2 -U postgres -h "$SCRATCH/postgres" postgres >"$SCRATCH/pgbench" 2>&1 || { failed 1 "pgbench -i"; exit 1; }
else
    printf 'without PostgreSQL: not installed, or not root\n'
fi
for round in $(seq 1 "$ROUNDS"); do
    writers_start || { failed 1 "round $round: the writers do not start"; exit 1; }
    first=$(number_in lines)
    if [ -n "$HAVE_POSTGRES" ]; then
        "$HAVE_POSTGRES/pgbench" -n -c 2 -T 300 -U postgres -h "$SCRATCH/postgres" postgres >"$SCRATCH/pgbench" 2>&1 & WRITERS+=($!)
    fi
    target=$((first + 20 + RANDOM % 200))
    while [ "$(number_in lines)" -lt "$target" ] && kill -0 "${WRITERS[0]}" 2>/dev/null; do sleep 0.01; done
    cut_now "$(scratch_daemon)"
    postgres_kill
    wait "${WRITERS[@]}" 2>/dev/null
    give_up_disk
    [ -z "$POWER" ] || export TERRACE_TEST_VOLATILE_DEVICES=$((SEED + round))
    timeout 60 "$TERRACE" start "$POOL" || { failed 1 "round $round: the pool does not start"; exit 1; }
    DISK=$(device)
    # Replays the journal, then looks at everything.
    e2fsck -fp "$DISK" >"$SCRATCH/fsck.ext4" 2>&1
    [ $? -le 1 ] || { cat "$SCRATCH/fsck.ext4"; failed 1 "round $round: e2fsck has found damage on $DISK"; exit 1; }
    mount -o discard "$DISK" "$MOUNT" || { failed 1 "round $round: $DISK cannot be mounted"; exit 1; }
    missing=$(writers_check) || { failed 1 "round $round: $missing"; exit 1; }
    if [ -n "$HAVE_POSTGRES" ] && [ "$(balances)" != t ]; then failed 1 "round $round: pgbench's balances differ"; exit 1; fi
    printf 'round %d: %s (%d new lines): all there\n' "$round" "$(writers_told)" $(($(number_in lines) - first))
done
postgres_kill
umount "$MOUNT" && timeout 60 "$TERRACE" detach "$POOL/disk" >/dev/null || { failed 1 "detach after $ROUNDS kills"; exit 1; }
timeout 600 "$TERRACE" scrub "$POOL" --wait && "$TERRACE" stop "$POOL" && "$TERRACE" verify "$POOL" || { failed 1 "scrub and verify after $ROUNDS kills"; exit 1; }
passed 1
