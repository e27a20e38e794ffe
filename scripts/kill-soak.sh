#!/usr/bin/env bash
# kill -9 of the daemon at random moments while real programs work on the mount: those of durable-writers.sh, who are
# told what is durable, beside rsync, tar, git clone and gc, a C build, find and du, shared copies, snapshots made and destroyed.
# After each kill: everything acknowledged is there, PostgreSQL's and SQLite's own checks and git fsck find nothing; at
# the end a tree compares equal by checksum, and scrub and the offline verify are clean. Prints how long each restart
# took until the mount could be used, which is a measurement and decides nothing.
#   scripts/kill-soak.sh TERRACE-BINARY [ROUNDS] [SEED] [TREE]      100 rounds; TREE is copied, by default /usr/share
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/durable-writers.sh
scratch_begin "$1"
trap 'postgres_kill; scratch_end' EXIT
ROUNDS=${2:-100} SEED=${3:-$RANDOM} TREE=${4:-/usr/share}
RANDOM=$((SEED % 32768))
printf 'kills: seed %d\n' "$SEED"

SOURCE=$SCRATCH/source
mkdir "$SOURCE"
# Bounded: what fits the pool several times, most of it small files, as in a kernel's tree.
(cd "$TREE" && find . -xdev -type f -size -256k 2>/dev/null | LC_ALL=C sort | head -n 30000 | tar -cf - -T - 2>/dev/null) | tar -xf - -C "$SOURCE"
printf '%s files, %s\n' "$(find "$SOURCE" -type f | wc -l)" "$(du -sh --apparent-size "$SOURCE" | cut -f 1)"

program_rsync() { rsync -aHAX --delete "$SOURCE/" "$MOUNT/tree/"; }
program_tar() { tar -cf "$MOUNT/tree.tar" -C "$SOURCE" . && mkdir -p "$MOUNT/untarred" && tar -xf "$MOUNT/tree.tar" -C "$MOUNT/untarred" && rm -r "$MOUNT/untarred" "$MOUNT/tree.tar"; }
program_git() { rm -rf "$MOUNT/clone" && git clone -q "file://$PWD" "$MOUNT/clone" && git -C "$MOUNT/clone" gc -q --aggressive && git -C "$MOUNT/clone" fsck --full; }
program_copy() { cp -r --reflink=auto "$MOUNT/tree" "$MOUNT/shared" && find "$MOUNT/shared" -newer /proc/self -print && du -s "$MOUNT" && rm -r "$MOUNT/shared"; }
program_snapshot() { "$TERRACE" snapshot "$POOL/data@s$RANDOM$RANDOM"; "$TERRACE" list -t snapshot -r "$POOL" | awk 'NR > 1 { print $1 }' | shuf -n 1 --random-source=/dev/urandom | xargs -r "$TERRACE" destroy --yes; sleep 0.3; }
program_build() {
    mkdir -p "$MOUNT/build" && cd "$MOUNT/build" || return 1
    local i
    for i in $(seq 40); do printf '#include <stdio.h>\nint f%d(int x) { printf("%%d\\n", x); return x + %d; }\n' "$i" "$RANDOM" >"f$i.c" || return 1; done
    for i in $(seq 40); do cc -O1 -c "f$i.c" -o "f$i.o" || return 1; done
    ar rcs all.a f*.o && nm all.a >symbols
}
programs() { # what each says about a mount that went away is of no interest
    local list=(rsync tar git copy snapshot build)
    while not_cut && { "program_${list[RANDOM % ${#list[@]}]}" || ls "$MOUNT"; } >/dev/null 2>&1; do :; done
}

scratch_pool 2G 4G && writers_prepare "$MOUNT" || { failed 1 "kills: no pool, mount and writers"; exit 1; }
postgres_prepare "$MOUNT/postgres" || printf 'without PostgreSQL: not installed, or not root\n'
: >"$SCRATCH/restarts"
for round in $(seq 1 "$ROUNDS"); do
    pid=$(scratch_daemon)
    [ -n "$pid" ] || { failed 1 "round $round: status does not name the daemon"; exit 1; }
    writers_start || { failed 1 "round $round: the writers do not start"; exit 1; }
    first=$(number_in lines)
    programs & WRITERS+=($!)
    programs & WRITERS+=($!)
    target=$((first + 1 + RANDOM % 200))
    while [ "$(number_in lines)" -lt "$target" ] && kill -0 "${WRITERS[0]}" 2>/dev/null; do sleep 0.01; done
    cut_now "$pid"
    postgres_kill
    wait "${WRITERS[@]}" 2>/dev/null
    began=$(date +%s%N)
    timeout 60 "$TERRACE" start "$POOL" || { failed 1 "round $round: the pool does not start"; exit 1; }
    ls "$MOUNT" >/dev/null && tail -c 1 "$MOUNT/lines" >/dev/null || { failed 1 "round $round: the mount did not come back"; exit 1; }
    took=$((($(date +%s%N) - began) / 1000000))
    echo "$took" >>"$SCRATCH/restarts"
    missing=$(writers_check) || { failed 1 "round $round: $missing"; exit 1; }
    printf 'round %d: %s (%d new lines): all there; usable after %d ms\n' "$round" "$(writers_told)" $(($(number_in lines) - first)) "$took"
done
postgres_kill
rsync -aHAX --delete "$SOURCE/" "$MOUNT/tree/" || { failed 1 "rsync after $ROUNDS kills"; exit 1; }
differences=$(rsync -aHAX --checksum --itemize-changes --dry-run --delete "$SOURCE/" "$MOUNT/tree/")
[ -z "$differences" ] || { printf '%s\n' "$differences" | head; failed 1 "the tree differs after $ROUNDS kills"; exit 1; }
timeout 600 "$TERRACE" scrub "$POOL" --wait || { failed 1 "scrub after $ROUNDS kills"; exit 1; }
"$TERRACE" unmount "$MOUNT" && "$TERRACE" stop "$POOL" && "$TERRACE" verify "$POOL" || { failed 1 "verify after $ROUNDS kills"; exit 1; }
sort -n "$SCRATCH/restarts" | awk '{ t[NR] = $1 } END { printf "usable again: median %d ms, 9 of 10 within %d ms, at most %d ms\n", t[int((NR + 1) / 2)], t[int((NR * 9 + 9) / 10)], t[NR] }'
passed 1
