#!/usr/bin/env bash
# Measures a pool of a fast and a slow tier in emulation, as root: loop devices that a control group slows down, so that
# the results hang on what is asked of the devices and little on the machine. Prints the table and keeps it in
# docs/performance.md between its markers, with the date and the command.
#   scripts/bench-tiers.sh [SECONDS] [FAST_IOPS] [SLOW_IOPS]       default 10 20000 150; seconds for each cell
# TERRACE_BENCH_BINARY: an optimised terrace that is there already. TERRACE_BENCH_KEEP=no: leaves the document alone.
#
# Fast 256 MiB, slow 1 GiB, memory of the pool 64 MiB; a file of 128 MiB (the table of TIER) and one of 640 MiB (hot
# sets) in a mounted filesystem, read and written with O_DIRECT, 4 KiB, libaio, iodepth 4. `slow reads` is what of the requests
# the slow device had to answer. A request of a device counts as one whatever its size, up to 1 MiB.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-10} fast_iops=${2:-20000} slow_iops=${3:-150}
[ "$(id -u)" = 0 ] || { echo "run as root: it makes loop devices and a control group" >&2; exit 1; }
command -v fio >/dev/null || { scripts/install-deps.sh bench; command -v fio >/dev/null || { echo "there is no fio here" >&2; exit 1; }; }
binary=${TERRACE_BENCH_BINARY:-}
[ -n "$binary" ] || { cargo build --release --quiet --bin terrace || exit 1; binary=${CARGO_TARGET_DIR:-$PWD/target}/release/terrace; }
# shellcheck source=scripts/scratch-pool.sh
. scripts/scratch-pool.sh
# shellcheck source=scripts/slow-devices.sh
. scripts/slow-devices.sh
scratch_begin "$binary"
RESULTS=$SCRATCH/results
: >"$RESULTS"
FAST='' SLOW=''
cleanup() {
    scratch_end
    slow_devices_leave
    for device in $FAST $SLOW; do losetup -d "$device"; done
    rm -rf "$SCRATCH"
}
trap cleanup EXIT

# Written before, so that the filesystem below has nothing to allocate while it is measured.
dd if=/dev/zero of="$SCRATCH/fast.img" bs=1M count=256 status=none && FAST=$(losetup --find --show --direct-io=on "$SCRATCH/fast.img") || exit 1
dd if=/dev/zero of="$SCRATCH/slow.img" bs=1M count=1024 conv=fsync status=none && SLOW=$(losetup --find --show --direct-io=on "$SCRATCH/slow.img") || exit 1
# Everything from here on, the daemon too, is in the group: only the two devices are slower in it.
slow_devices_enter "$FAST" "$fast_iops" "$SLOW" "$slow_iops" || exit 1

# Requests that a device has answered: reads, or all.
answered() { awk -v all="${2:-}" '{ print all ? $1 + $5 : $1 }' "/sys/block/${1#/dev/}/stat"; }
# $1 target, $2 cell, $3 device or file, fio options…: keeps IOPS, p99 in microseconds, and the share that the slow device read
run() {
    local target=$1 cell=$2 before after line
    before=$(answered "$SLOW")
    line=$(fio --name=j --ioengine=libaio --direct=1 --bs=4k --iodepth=4 --refill_buffers --filename="$3" --runtime="$seconds" \
        --time_based --randrepeat=0 --clat_percentiles=0 --lat_percentiles=1 --output-format=terse --terse-version=3 "${@:4}" 2>/dev/null | grep -m 1 ';')
    after=$(answered "$SLOW")
    printf '%s\n' "$line" | awk -F';' -v target="$target" -v cell="$cell" -v slow=$((after - before)) -v seconds="$seconds" '{
        for (at = 1; at <= NF; at++) if ($at ~ /^99\.0+%=/) { sub(/.*=/, "", $at); if ($at + 0 > p99) p99 = $at + 0 }
        reads = $8 * seconds
        printf "%s %s %d %d %.3f\n", target, cell, $8 + $49, p99, reads ? slow / reads : 0 }' | tee -a "$RESULTS" >&2
}
# $1 target, $2 suffix of the cells, $3 device, size
table_of_tier() {
    run "$1" "seq-read$2" "$3" --rw=read "${@:4}"
    run "$1" "rand-read$2" "$3" --rw=randread "${@:4}"
    run "$1" "seq-write$2" "$3" --rw=write "${@:4}"
    run "$1" "rand-write$2" "$3" --rw=randwrite "${@:4}"
}
# The last is where the hottest block lies: without it fio draws the places of the hot set anew for each job, and no training helps.
SCATTERED='--random_distribution=zipf:1.2:0'
CONTIGUOUS='--random_distribution=zoned:90/10:10/90'
hot_sets() {
    run "$1" "scattered$2" "$3" --rw=randread $SCATTERED
    run "$1" "contiguous$2" "$3" --rw=randread $CONTIGUOUS
    run "$1" "scattered-mix$2" "$3" --rw=randrw --rwmixread=70 $SCATTERED
    run "$1" "contiguous-mix$2" "$3" --rw=randrw --rwmixread=70 $CONTIGUOUS
}
train() { fio --name=t --ioengine=libaio --direct=1 --bs=4k --iodepth=4 --filename="$1" --runtime=$((seconds * 3)) --time_based --randrepeat=0 "${@:2}" >/dev/null 2>&1; }

echo "devices alone" >&2
table_of_tier fast '' "$FAST" --size=128M
hot_sets fast '' "$FAST"
table_of_tier slow '' "$SLOW" --size=128M
hot_sets slow '' "$SLOW"
wipefs -qa "$FAST" "$SLOW"

"$TERRACE" pool create "$POOL" --tier "fast=$FAST" --tier "slow=$SLOW" -o memory=64M --force >&2 &&
    "$TERRACE" fs create "$POOL/data" && "$TERRACE" mount "$POOL/data" "$MOUNT" || exit 1
bulk=$MOUNT/bulk table=$MOUNT/table
# With a seed of its own each time: equal files would be stored once, and what moves one would move the other.
lay() { fio --name=lay --ioengine=libaio --direct=1 --filename="$1" --size="$2" --bs=1M --rw=write --refill_buffers --randrepeat=0 --end_fsync=1 >/dev/null; }
lay "$bulk" 640M && lay "$table" 128M || exit 1
state() { { "$TERRACE" jobs "$POOL" | tail -n 4; "$TERRACE" where "$POOL/data/$1" | head -n 4; "$TERRACE" tier devices "$POOL"; } >&2; }
demote() { "$TERRACE" demote "$POOL/data/$1" --wait >&2; "$TERRACE" where "$POOL/data/$1" | head -n 3 >&2; }
demote bulk; demote table
"$TERRACE" tier clear-heat "$POOL"
"$TERRACE" pool set migration=off "$POOL"
"$TERRACE" tier list "$POOL" >&2

echo "before training" >&2
hot_sets terrace -before "$bulk"
table_of_tier terrace -before "$table"
"$TERRACE" pool set migration=on "$POOL"
demote table
# Each training begins with nothing known, as a cache begins empty.
"$TERRACE" tier clear-heat "$POOL" >&2
restart() {
    "$TERRACE" stop "$POOL" >&2 && "$TERRACE" start "$POOL" >&2
    mountpoint -q "$MOUNT" || "$TERRACE" mount "$POOL/data" "$MOUNT"
}
HOT=(--rw=randread --size=64M)
echo "training: the table" >&2
train "$table" --rw=randread; settle
table_of_tier terrace -after "$table"
state table
demote table
"$TERRACE" tier clear-heat "$POOL" >&2
echo "training: a contiguous hot set" >&2
for _ in 1 2; do train "$bulk" --rw=randread $CONTIGUOUS; settle; done
state bulk
run terrace contiguous-after "$bulk" --rw=randread $CONTIGUOUS
run terrace contiguous-mix-after "$bulk" --rw=randrw --rwmixread=70 $CONTIGUOUS
run terrace hot-after "$bulk" "${HOT[@]}"
restart
run terrace contiguous-restart "$bulk" --rw=randread $CONTIGUOUS
run terrace hot-restart "$bulk" "${HOT[@]}"
dd if="$bulk" of=/dev/null bs=1M iflag=direct 2>/dev/null
run terrace hot-after-scan "$bulk" "${HOT[@]}"
settle
run terrace hot-after-scan-settled "$bulk" "${HOT[@]}"

echo "beside migration" >&2
"$TERRACE" pool set migration=off "$POOL"
beside() { # $1 suffix; three times as long, as one request in a hundred decides
    local longer=--runtime=$((seconds * 3))
    run terrace "p99-read-$1" "$bulk" "${HOT[@]}" --rate_iops=1000 $longer
    run terrace "p99-write-$1" "$bulk" --rw=randwrite --size=64M --rate_iops=1000 $longer
    run terrace "p99-slow-$1" "$bulk" --rw=randread --offset=320M --size=256M --iodepth=1 --rate_iops=50 $longer
}
beside migration-off
"$TERRACE" pool set migration=on "$POOL"
( while :; do "$TERRACE" promote "$POOL/data/table" --wait; "$TERRACE" demote "$POOL/data/table" --wait; done ) >/dev/null 2>&1 &
moving=$!
beside migration-on
kill $moving; wait $moving 2>/dev/null
state table
for id in $("$TERRACE" jobs "$POOL" --json | tr '{' '\n' | grep '"running"' | sed -n 's/.*"id": *\([0-9]*\).*/\1/p'); do "$TERRACE" jobs cancel "$id" >/dev/null; done
demote table

echo "training: a scattered hot set" >&2
"$TERRACE" tier clear-heat "$POOL" >&2
for _ in 1 2; do train "$bulk" --rw=randread $SCATTERED; settle; done
state bulk
run terrace scattered-after "$bulk" --rw=randread $SCATTERED
run terrace scattered-mix-after "$bulk" --rw=randrw --rwmixread=70 $SCATTERED
restart
run terrace scattered-restart "$bulk" --rw=randread $SCATTERED

value() { awk -v t="$1" -v c="$2" -v f="$3" '$1 == t && $2 == c { v = $f } END { print v == "" ? "-" : v }' "$RESULTS"; }
row() { # $1 cell of the table, $2 cell of the devices alone
    local after fast
    after=$(value terrace "$1-after" 3) fast=$(value fast "$2" 3)
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$fast" "$(value slow "$2" 3)" "$(value terrace "$1-before" 3)" "$after" \
        "$(awk -v a="$after" -v f="$fast" 'BEGIN { if (a + 0 && f + 0) printf "%.2f", a / f; else printf "-" }')" \
        "$(value terrace "$1-after" 5)" "$(value terrace "$1-restart" 3)"
}
table() {
    printf '| job | fast alone | slow alone | before training | after | after / fast | slow reads | after a restart |\n'
    printf '|---|---|---|---|---|---|---|---|\n'
    for cell in seq-read rand-read seq-write rand-write scattered contiguous scattered-mix contiguous-mix; do row "$cell" "$cell"; done
    row hot rand-read
    printf '\nThe hot set after a full read of the file in order: %s IOPS, %s of the requests read from the slow device (%s before it); later: %s, %s.\n' \
        "$(value terrace hot-after-scan 3)" "$(value terrace hot-after-scan 5)" "$(value terrace hot-restart 5)" \
        "$(value terrace hot-after-scan-settled 3)" "$(value terrace hot-after-scan-settled 5)"
    printf '\n| p99 in µs at 1,000 requests a second (slow: 50) | migration off | at full work |\n|---|---|---|\n'
    for cell in read write slow; do
        printf '| %s | %s | %s |\n' "$cell" "$(value terrace "p99-$cell-migration-off" 4)" "$(value terrace "p99-$cell-migration-on" 4)"
    done
    printf '\n%s, `make bench-tiers BENCH="%s %s %s"`: IOPS over %s s each; `slow reads`: requests of the slow device for each of fio. Load at the end: %s.\n' \
        "$(date -I)" "$seconds" "$fast_iops" "$slow_iops" "$seconds" "$(cut -d' ' -f1 /proc/loadavg)"
}
table | tee "$SCRATCH/table"
[ "${TERRACE_BENCH_KEEP:-yes}" = no ] && exit
page=docs/performance.md
grep -q '<!-- bench-tiers -->' "$page" || printf '\n## Tiers\n\n<!-- bench-tiers -->\n<!-- /bench-tiers -->\n' >>"$page"
awk -v table="$SCRATCH/table" '/<!-- bench-tiers -->/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /<!-- \/bench-tiers -->/ { skip = 0 } !skip' "$page" >"$SCRATCH/page" && cp "$SCRATCH/page" "$page"
