#!/usr/bin/env bash
# Runs pjdfstest on a Terrace mount: every test that this machine's ext4 passes must pass here (both are run).
#   scripts/pjdfstest.sh TERRACE-BINARY
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
scratch_begin "$1"
scratch_pool 512M 1G || { failed 1 "pjdfstest: no mount"; exit 1; }

cat >"$SCRATCH/config.toml" <<'CONFIG'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}

[settings]
naptime = 0.05
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
CONFIG

# The tests switch users, so every directory above the mount lets them pass.
chmod 755 "$SCRATCH"
mkdir "$MOUNT/pjdfstest" && chmod 755 "$MOUNT" "$MOUNT/pjdfstest"
timeout 240 pjdfstest -c "$SCRATCH/config.toml" -p "$MOUNT/pjdfstest" >"$SCRATCH/terrace.out" 2>&1
sed -n 's/^\([a-z_0-9:]*\) *FAILED.*/\1/p' "$SCRATCH/terrace.out" | sort -u >"$SCRATCH/terrace.failed"
summary=$(grep '^Summary:' "$SCRATCH/terrace.out" | tail -n 1)
if [ -z "$summary" ]; then
    tail -n 20 "$SCRATCH/terrace.out"
    failed 1 "pjdfstest did not finish"
    exit 1
fi
printf 'terrace  %s\n' "$summary"

# What ext4 fails as well is not ours to pass.
: >"$SCRATCH/ext4.failed"
if [ -s "$SCRATCH/terrace.failed" ] && command -v mkfs.ext4 >/dev/null; then
    truncate -s 512M "$SCRATCH/ext4.img" && mkfs.ext4 -q "$SCRATCH/ext4.img" && mkdir "$SCRATCH/ext4"
    if mount -o loop "$SCRATCH/ext4.img" "$SCRATCH/ext4" 2>/dev/null; then
        chmod 755 "$SCRATCH/ext4"
        timeout 120 pjdfstest -c "$SCRATCH/config.toml" -p "$SCRATCH/ext4" >"$SCRATCH/ext4.out" 2>&1
        umount "$SCRATCH/ext4"
        sed -n 's/^\([a-z_0-9:]*\) *FAILED.*/\1/p' "$SCRATCH/ext4.out" | sort -u >"$SCRATCH/ext4.failed"
        printf 'ext4     %s\n' "$(grep '^Summary:' "$SCRATCH/ext4.out" | tail -n 1)"
    fi
fi
number() { printf '%s\n' "$summary" | sed -n "s/.*[ :]\([0-9]*\) $1.*/\1/p"; }
ours=$(comm -23 "$SCRATCH/terrace.failed" "$SCRATCH/ext4.failed")
excused=$(comm -12 "$SCRATCH/terrace.failed" "$SCRATCH/ext4.failed" | wc -l)
passed "$(number passed)"
skipped $(($(number skipped) + excused)) "need remounts, a second filesystem or features of other systems, or fail on ext4 too"
# Counted from the summary, so that a failure that the pattern above does not know is not lost.
count=$(($(number failed) - excused))
if [ "$count" -gt 0 ]; then
    failed "$count" "$(printf '%s' "$ours" | tr '\n' ' ')"
    grep -A 3 FAILED "$SCRATCH/terrace.out" | head -n 60
    exit 1
fi
