#!/usr/bin/env bash
# Real programs on a real mount, with the daemon killed under them. Each case is a function `case_NAME`; none of them
# depends on how long anything takes.
#   scripts/mount-test.sh TERRACE-BINARY [CASE…]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/cases.sh
scratch_begin "$1"
shift
CASES=(tree_survives_remount rsync_agrees git_repository sqlite_after_kill fsynced_lines_after_kill attributes_and_acls
    sparse_files snapshot_shows_the_past full_pool_recovers second_copy_is_shared scrub_is_clean export_and_import)

remount() { "$TERRACE" unmount "$MOUNT" && "$TERRACE" stop "$POOL" && "$TERRACE" start "$POOL" && "$TERRACE" mount "$POOL/data" "$MOUNT"; }

# Kills the daemon the hard way and brings it back; the mount must come back with it.
kill_and_start() {
    kill_daemon && timeout 60 "$TERRACE" start "$POOL" || return 1
    mountpoint -q "$MOUNT" && ls "$MOUNT" >/dev/null || "$TERRACE" mount "$POOL/data" "$MOUNT"
}

# A tree of a few thousand real files, bounded.
source_tree() {
    if [ ! -d "$SCRATCH/source" ]; then
        mkdir "$SCRATCH/source"
        cp -a crates docs scripts "$SCRATCH/source/"
        (cd /usr/share && find . -xdev -type f -size -64k 2>/dev/null | LC_ALL=C sort | head -n 3000 |
            tar -cf - -T - 2>/dev/null) | tar -xf - -C "$SCRATCH/source"
        mkdir "$SCRATCH/source/links"
        ln -s ../crates "$SCRATCH/source/links/symbolic"
        ln "$SCRATCH/source/scripts/test.sh" "$SCRATCH/source/links/hard"
        head -c 20000000 /dev/urandom >"$SCRATCH/source/random"
    fi
}

case_tree_survives_remount() {
    source_tree
    cp -a "$SCRATCH/source" "$MOUNT/tree" && remount && diff -r --no-dereference "$SCRATCH/source" "$MOUNT/tree" &&
        [ "$(stat -c %h "$MOUNT/tree/links/hard")" = 2 ]
}

case_rsync_agrees() {
    needs rsync || return 77
    source_tree
    rsync -aHAX "$SCRATCH/source/" "$MOUNT/rsynced/" || return 1
    local differences
    differences=$(rsync -aHAX --checksum --itemize-changes --dry-run --delete "$SCRATCH/source/" "$MOUNT/rsynced/")
    [ -z "$differences" ] || { printf '%s\n' "$differences" | head; return 1; }
}

case_git_repository() {
    needs git || return 77
    git init -q "$MOUNT/repository" && cp -a crates "$MOUNT/repository/" && (
        cd "$MOUNT/repository" && git add -A && git -c user.name=t -c user.email=t@t -c commit.gpgsign=false commit -q -m "all" &&
            git gc -q && git fsck --full --strict && git clone -q . ../clone && diff -r crates ../clone/crates
    )
}

case_sqlite_after_kill() {
    needs sqlite3 || return 77
    local i
    sqlite3 "$MOUNT/base.db" "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(i INTEGER PRIMARY KEY, x BLOB);" >/dev/null || return 1
    for i in $(seq 1 20); do
        sqlite3 "$MOUNT/base.db" "PRAGMA synchronous=FULL; INSERT INTO t SELECT NULL, randomblob(900) FROM generate_series(1, 50);" >/dev/null || return 1
    done
    kill_and_start || return 1
    [ "$(sqlite3 "$MOUNT/base.db" 'PRAGMA integrity_check')" = ok ] &&
        [ "$(sqlite3 "$MOUNT/base.db" 'SELECT count(*) FROM t')" = 1000 ]
}

case_fsynced_lines_after_kill() {
    local i flags=(append append,dsync append,sync) conversions=(notrunc,fsync notrunc notrunc)
    for i in $(seq 1 60); do
        printf 'line %d\n' "$i" | dd of="$MOUNT/lines" oflag="${flags[i % 3]}" conv="${conversions[i % 3]}" status=none || return 1
    done
    # And load that nobody waits for, so that the kill strikes in the middle of something.
    dd if=/dev/urandom of="$MOUNT/unsynced" bs=64k count=400 status=none
    kill_and_start || return 1
    [ "$(seq 1 60 | sed 's/^/line /' | cmp - "$MOUNT/lines" && echo same)" = same ]
}

case_attributes_and_acls() {
    needs setfattr setfacl || return 77
    local file=$MOUNT/attributed
    echo content >"$file" && setfattr -n user.color -v green "$file" && setfacl -m u:1:r,g:2:rw "$file" && chmod g+s "$file" &&
        chown 3:4 "$file" && touch -d '2001-02-03 04:05:06.123456789' "$file" || return 1
    local before after
    before=$(getfattr -d --absolute-names "$file"; getfacl -n -p "$file"; stat -c '%a %u %g %y %s' "$file")
    remount || return 1
    after=$(getfattr -d --absolute-names "$file"; getfacl -n -p "$file"; stat -c '%a %u %g %y %s' "$file")
    [ "$before" = "$after" ] || { printf 'before: %s\nafter: %s\n' "$before" "$after"; return 1; }
    printf '%s' "$after" | grep -q 'user.color="green"' && printf '%s' "$after" | grep -q '^user:1:r'
}

case_sparse_files() {
    truncate -s 16T "$MOUNT/sparse" && printf end | dd of="$MOUNT/sparse" bs=1 seek=1000000000000 conv=notrunc status=none &&
        [ "$(stat -c %s "$MOUNT/sparse")" = 17592186044416 ] && [ "$(stat -c %b "$MOUNT/sparse")" -lt 100 ] &&
        [ "$(dd if="$MOUNT/sparse" bs=1 skip=1000000000000 count=3 status=none)" = end ] && rm "$MOUNT/sparse"
}

case_snapshot_shows_the_past() {
    mkdir "$MOUNT/past" && echo one >"$MOUNT/past/file" && echo gone >"$MOUNT/past/deleted" &&
        "$TERRACE" snapshot "$POOL/data@before" && echo two | dd of="$MOUNT/past/file" conv=fsync status=none && rm "$MOUNT/past/deleted" || return 1
    local past=$MOUNT/.terrace/snapshots/before/past
    [ "$(cat "$past/file")" = one ] && [ "$(cat "$past/deleted")" = gone ] && [ "$(cat "$MOUNT/past/file")" = two ] || return 1
    kill_and_start && [ "$(cat "$past/file")" = one ] && "$TERRACE" destroy --yes "$POOL/data@before" && ! ls "$past" 2>/dev/null &&
        [ "$(cat "$MOUNT/past/file")" = two ]
}

case_full_pool_recovers() {
    echo keep | dd of="$MOUNT/keep" conv=fsync status=none || return 1
    if dd if=/dev/urandom of="$MOUNT/big" bs=1M count=4096 conv=fsync status=none 2>"$SCRATCH/full.err"; then
        echo "4 GiB fitted into a smaller pool"
        return 1
    fi
    grep -q 'No space left' "$SCRATCH/full.err" || { cat "$SCRATCH/full.err"; return 1; }
    [ "$(cat "$MOUNT/keep")" = keep ] && rm "$MOUNT/big" || return 1
    # Freeing goes on in the background: room for this must come without anything else being done.
    local i
    for i in $(seq 1 100); do
        dd if=/dev/urandom of="$MOUNT/again" bs=1M count=64 conv=fsync status=none 2>/dev/null && return 0
        sleep 0.2
    done
    echo "no room came back after the deletion"
    return 1
}

case_second_copy_is_shared() {
    local before after
    head -c 30000000 /dev/urandom >"$SCRATCH/blob"
    cp "$SCRATCH/blob" "$MOUNT/first" && sync -f "$MOUNT/first" || return 1
    before=$("$TERRACE" status "$POOL" --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"unique_bytes": *\([0-9]*\).*/\1/p' | head -n 1)
    cp "$SCRATCH/blob" "$MOUNT/second" && sync -f "$MOUNT/second" && cmp "$MOUNT/first" "$MOUNT/second" || return 1
    after=$("$TERRACE" status "$POOL" --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"unique_bytes": *\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$before" ] && [ -n "$after" ] && [ $((after - before)) -lt 10000000 ] || { echo "unique bytes: $before, then $after"; return 1; }
}

case_scrub_is_clean() { "$TERRACE" scrub "$POOL" --wait; }

case_export_and_import() {
    echo carried >"$MOUNT/carried" && "$TERRACE" unmount "$MOUNT" && "$TERRACE" pool export "$POOL" || return 1
    mv "$SCRATCH/fast.img" "$SCRATCH/renamed.img"
    "$TERRACE" pool import --search "$SCRATCH" "$POOL" || "$TERRACE" pool import "$SCRATCH/slow.img" "$SCRATCH/renamed.img" || return 1
    "$TERRACE" mount "$POOL/data" "$MOUNT" && [ "$(cat "$MOUNT/carried")" = carried ]
}

if ! scratch_pool 512M 1G; then
    failed 1 "no pool, filesystem and mount could be made"
    exit 1
fi
[ $# -eq 0 ] && set -- "${CASES[@]}"
run_cases "$@"
