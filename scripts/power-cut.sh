#!/usr/bin/env bash
# Power cuts under the real binary and real programs. The daemon runs on devices that lose what was not flushed when it
# dies (crates/device/src/volatile.rs), so that kill -9 is a power cut: unflushed sectors are lost, kept or torn at 512
# bytes, in any order. A log writer, SQLite and git, each with fsync, run beside a load that never syncs; after
# each cut what they were told is durable must be there, and the pool must scrub clean.
#   scripts/power-cut.sh TERRACE-BINARY [ROUNDS] [SEED]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
scratch_begin "$1"
ROUNDS=${2:-5} SEED=${3:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$((SEED % 32768))
printf 'power cuts: seed %d\n' "$SEED"
export TERRACE_TEST_VOLATILE_DEVICES=$SEED
export GIT_CONFIG_COUNT=4 GIT_CONFIG_KEY_0=core.fsync GIT_CONFIG_VALUE_0=all GIT_CONFIG_KEY_1=core.fsyncMethod \
    GIT_CONFIG_VALUE_1=fsync GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0 GIT_CONFIG_KEY_3=safe.directory \
    GIT_CONFIG_VALUE_3='*' GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t

# Replaces the note whole: it is read while it is written.
note() { echo "$2" >"$SCRATCH/next.$1" && mv "$SCRATCH/next.$1" "$SCRATCH/acked.$1"; }

# Each writer notes, outside of the pool, what it was told is durable, and ends when the mount does.
log_writer() {
    local i=$1
    while printf 'line %d\n' "$i" | dd of="$MOUNT/lines" oflag=append conv=notrunc,fsync status=none 2>/dev/null; do
        note lines "$i"
        i=$((i + 1))
    done
}
# EXTRA: with FULL the deletion of the journal, which is the commit, is not synced, and a cut may take the last one back.
sqlite_writer() {
    local rows=$1
    while sqlite3 -cmd '.timeout 5000' "$MOUNT/base.db" \
        "PRAGMA synchronous=EXTRA; INSERT INTO t SELECT NULL, randomblob(700) FROM generate_series(1, 20);" >/dev/null 2>&1; do
        rows=$((rows + 20))
        note rows "$rows"
    done
}
git_writer() {
    local i=0
    # Left over by the cut, as after any: git says so itself.
    rm -f "$MOUNT"/repository/.git/*.lock "$MOUNT"/repository/.git/refs/heads/*.lock
    git -C "$MOUNT/repository" reset -q --hard >/dev/null 2>&1
    while head -c 3000 /dev/urandom >"$MOUNT/repository/file$((i % 7))" 2>/dev/null &&
        git -C "$MOUNT/repository" add -A 2>/dev/null && git -C "$MOUNT/repository" commit -q -m "$i" 2>/dev/null; do
        git -C "$MOUNT/repository" rev-parse HEAD >"$SCRATCH/acked.next" 2>/dev/null || return
        mv "$SCRATCH/acked.next" "$SCRATCH/acked.commit"
        i=$((i + 1))
    done
}
churn() {
    while cp -r scripts docs crates/codec "$MOUNT/churn" 2>/dev/null && mv "$MOUNT/churn" "$MOUNT/moved" 2>/dev/null &&
        rm -r "$MOUNT/moved" 2>/dev/null; do mkdir -p "$MOUNT/churn" 2>/dev/null || return; done
}
number_in() { cat "$SCRATCH/$1" 2>/dev/null || echo 0; }

scratch_pool 512M 1G || { failed 1 "power cut: no mount"; exit 1; }
HAVE_SQLITE=$(command -v sqlite3) HAVE_GIT=$(command -v git)
[ -n "$HAVE_SQLITE" ] && { sqlite3 "$MOUNT/base.db" "CREATE TABLE t(i INTEGER PRIMARY KEY, x BLOB)" || exit 1; }
[ -n "$HAVE_GIT" ] && { git init -q "$MOUNT/repository" || exit 1; }
sync -f "$MOUNT/base.db" 2>/dev/null

for round in $(seq 1 "$ROUNDS"); do
    mkdir -p "$MOUNT/churn"
    first=$(number_in acked.lines)
    # What was on its way when the last cut came may have become durable without having been told so.
    lines=0
    [ -f "$MOUNT/lines" ] && lines=$(wc -l <"$MOUNT/lines")
    rows=0
    [ -n "$HAVE_SQLITE" ] && rows=$(sqlite3 "$MOUNT/base.db" 'SELECT count(*) FROM t')
    note lines "$lines"
    note rows "$rows"
    log_writer $((lines + 1)) & writers=($!)
    [ -n "$HAVE_SQLITE" ] && { sqlite_writer "$rows" & writers+=($!); }
    [ -n "$HAVE_GIT" ] && { git_writer & writers+=($!); }
    churn & writers+=($!)
    target=$((lines + 20 + RANDOM % 60))
    while [ "$(number_in acked.lines)" -lt "$target" ] && kill -0 "${writers[0]}" 2>/dev/null; do sleep 0.02; done
    pid=$(scratch_daemon)
    kill -9 "$pid"
    # Programs that had files of the mount mapped die of it, as they would with the machine.
    wait "${writers[@]}" 2>/dev/null
    export TERRACE_TEST_VOLATILE_DEVICES=$((SEED + round))
    timeout 60 "$TERRACE" start "$POOL" || { failed 1 "round $round: the pool does not start"; exit 1; }
    mountpoint -q "$MOUNT" || { failed 1 "round $round: the mount did not come back"; exit 1; }
    acked=$(number_in acked.lines)
    if [ "$(head -n "$acked" "$MOUNT/lines" | sha256sum)" != "$(seq 1 "$acked" | sed 's/^/line /' | sha256sum)" ]; then
        failed 1 "round $round: of $acked lines that were synced, $(wc -l <"$MOUNT/lines") are there"
        exit 1
    fi
    if [ -n "$HAVE_SQLITE" ]; then
        check=$(sqlite3 "$MOUNT/base.db" 'PRAGMA integrity_check')
        there=$(sqlite3 "$MOUNT/base.db" 'SELECT count(*) FROM t')
        if [ "$check" != ok ] || [ "$there" -lt "$(number_in acked.rows)" ]; then
            failed 1 "round $round: SQLite says '$check' and has $there of $(number_in acked.rows) committed rows"
            exit 1
        fi
    fi
    if [ -n "$HAVE_GIT" ] && [ -f "$SCRATCH/acked.commit" ]; then
        if ! git -C "$MOUNT/repository" cat-file -e "$(cat "$SCRATCH/acked.commit")" ||
            ! git -C "$MOUNT/repository" fsck --full >"$SCRATCH/fsck" 2>&1; then
            head "$SCRATCH/fsck"
            failed 1 "round $round: git lost a commit that it was told is durable, or is damaged"
            exit 1
        fi
    fi
    rm -rf "$MOUNT/churn" "$MOUNT/moved"
    printf 'round %d: %d lines (%d new), %d rows: all there\n' "$round" "$acked" $((acked - first)) "$(number_in acked.rows)"
done
timeout 120 "$TERRACE" scrub "$POOL" --wait || { failed 1 "scrub after $ROUNDS power cuts"; exit 1; }
passed 1
