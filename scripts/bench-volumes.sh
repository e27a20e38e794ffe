#!/usr/bin/env bash
# Measures a volume, attached and over NBD, beside a raw file like the one that its pool lies on, a plain loop device over
# that file, nbdkit serving that file, and qemu serving a qcow2 image on the same filesystem, in the same run, as root; then
# the four loads of TIER's iometer table, a volume on two tiers against the fast device alone. Prints ratios to it and keeps them in
# docs/performance.md between its markers, with the date and the command.
#   scripts/bench-volumes.sh [SIZE_MB] [ROUNDS] [SECONDS]      default 1024 3 5; of the rounds the median counts
# TERRACE_BENCH_BINARY: an optimised terrace that is there already. The pool's memory is a quarter of SIZE_MB, so that the
# data is larger than the cache. The files of the pool are written once before, as the raw file is: in a file that was never
# written every flush waits for the host's filesystem as well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
size=${1:-1024} rounds=${2:-3} seconds=${3:-5}
[ "$(id -u)" = 0 ] || { echo "run as root: it makes loop devices" >&2; exit 1; }
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
NBD=no
fio --enghelp 2>/dev/null | grep -qw nbd && NBD=yes
TARGETS=(raw loop attached)
[ $NBD = yes ] && TARGETS+=(nbd)
QEMU='' NBDKIT=''
[ $NBD = yes ] && command -v nbdkit >/dev/null && NBDKIT=nbdkit TARGETS+=(nbdkit)
if [ $NBD = yes ]; then
    for QEMU in qemu-storage-daemon qemu-nbd ''; do command -v "${QEMU:-true}" >/dev/null && break; done
    [ -n "$QEMU" ] && TARGETS+=(qemu)
fi
JOBS=(read-1m read-4k-1 read-4k-4 read-4k-32 write-4k-1 write-4k-4 write-4k-32 flush-4k flush-p50 read-1m-after write-1m
    write-1m-half read-1m-half read-4k-32-half)
# TIER's own table was made with 1 GB of RAM for its cache, MiB.
FAST_IOPS=20000 SLOW_IOPS=150 TIER_MEMORY=1024 throttled=yes
IOMETER=(32k-seq-read 8k-60random-65read 32k-seq-50read 8k-random-70read)
loop='' peer_pid='' FAST='' SLOW=''
end_peer() {
    [ -n "$peer_pid" ] && kill "$peer_pid" 2>/dev/null && wait "$peer_pid" 2>/dev/null
    peer_pid=''
}
cleanup() {
    end_peer
    [ -n "$loop" ] && losetup -d "$loop" 2>/dev/null
    timeout 60 "$TERRACE" detach "$POOL/v" >/dev/null 2>&1
    scratch_end
    slow_devices_leave
    for device in $FAST $SLOW; do losetup -d "$device" 2>/dev/null; done
}
trap cleanup EXIT

# $1 target, $2 where: a file, a device or an NBD address
measure() {
    local target=$1 engine=(--ioengine=libaio --direct=1 --filename="$2")
    [ "${2#nbd}" = "$2" ] || engine=(--ioengine=nbd --uri="$2")
    run() { # $1 job, fio options…
        local job=$1 figure
        shift
        figure=$(fio --name=j "${engine[@]}" --size="${size}M" --runtime="$seconds" --time_based --refill_buffers --randrepeat=0 \
            --output-format=terse --terse-version=3 "$@" 2>/dev/null | awk -F';' '/;/ { printf "%d", $8 + $49 }')
        printf '%s %s %s\n' "$target" "$job" "${figure:-0}" >>"$RESULTS"
    }
    lay() { fio --name=lay "${engine[@]}" --size="$1M" --bs=1M --iodepth=4 --rw=write --refill_buffers --randrepeat=0 >/dev/null 2>&1; }
    if [ "${3:-}" = lay ]; then
        lay "$4"
        return
    fi
    # Each write is followed by a flush: the rate of pairs, and how many pairs of the median length fit into a second.
    run_flush() {
        fio --name=j "${engine[@]}" --size="${size}M" --runtime="$seconds" --time_based --refill_buffers --randrepeat=0 \
            --output-format=json --bs=4k --rw=randwrite --iodepth=1 --fsync=1 2>/dev/null |
            awk -v target="$target" '/"(read|write|trim|sync)" : \{/ { part = $1 }
                part == "\"write\"" && !rate && $1 == "\"iops\"" { rate = $3 + 0 }
                /"50.000000"/ { median[part] = $3 / 1000 }
                END { all = median["\"write\""] + median["\"sync\""]
                    printf "%s flush-4k %d\n%s flush-p50 %d\n", target, rate, target, all ? 1000000 / all : 0 }' >>"$RESULTS"
    }
    if [ "${3:-}" = iometer ]; then
        local size=$((size / 2))
        run 32k-seq-read --bs=32k --rw=read --iodepth=8
        run 8k-60random-65read --bs=8k --rw=randrw --percentage_random=60 --rwmixread=65 --iodepth=8
        run 32k-seq-50read --bs=32k --rw=rw --rwmixread=50 --iodepth=8
        run 8k-random-70read --bs=8k --rw=randrw --rwmixread=70 --iodepth=8
        return
    fi
    lay "$size"
    run read-1m --bs=1M --rw=read --iodepth=4
    for depth in 1 4 32; do run read-4k-$depth --bs=4k --rw=randread --iodepth=$depth; done
    for depth in 1 4 32; do run write-4k-$depth --bs=4k --rw=randwrite --iodepth=$depth; done
    run_flush
    # What was written here and there is read in order.
    run read-1m-after --bs=1M --rw=read --iodepth=4
    run write-1m --bs=1M --rw=write --iodepth=4
    # Data of which half can be compressed away.
    run write-1m-half --bs=1M --rw=write --iodepth=4 --buffer_compress_percentage=50
    run read-1m-half --bs=1M --rw=read --iodepth=4
    run read-4k-32-half --bs=4k --rw=randread --iodepth=32
}
# $1 a socket that a peer makes as it starts
wait_for_socket() { for _ in $(seq 100); do [ -S "$1" ] && break; sleep 0.1; done; }
# $1 file, $2 MiB
written_file() { fio --name=fill --filename="$1" --size="$2M" --bs=1M --iodepth=4 --ioengine=libaio --direct=1 --rw=write --refill_buffers >/dev/null 2>&1; }

written_file "$SCRATCH/raw.img" "$size" && written_file "$SCRATCH/pool.img" $((size * 3)) && written_file "$SCRATCH/slow.img" $((size * 3)) ||
    { echo "no room for $((size * 7)) MiB below ${TMPDIR:-/tmp}" >&2; exit 1; }
for round in $(seq 1 "$rounds"); do
    printf 'round %d of %d\n' "$round" "$rounds" >&2
    measure raw "$SCRATCH/raw.img"
    loop=$(losetup --find --show --direct-io=on "$SCRATCH/raw.img") && measure loop "$loop"
    losetup -d "$loop" && loop=''
    if [ -n "$NBDKIT" ]; then
        nbdkit --foreground --unix "$SCRATCH/nbdkit.sock" file "file=$SCRATCH/raw.img" cache=none &
        peer_pid=$!
        wait_for_socket "$SCRATCH/nbdkit.sock"
        measure nbdkit "nbd+unix:///?socket=$SCRATCH/nbdkit.sock"
        end_peer
        rm -f "$SCRATCH/nbdkit.sock"
    fi
    POOL=volumes$round
    "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/pool.img" -o "memory=$((size / 4))M" &&
        "$TERRACE" volume create "$POOL/v" --size "${size}M" --sparse || exit 1
    if device=$("$TERRACE" attach "$POOL/v"); then measure attached "$device"; fi
    "$TERRACE" detach "$POOL/v"
    if [ $NBD = yes ]; then
        measure nbd "$("$TERRACE" serve "$POOL/v" --nbd "unix:$SCRATCH/nbd.sock")"
    fi
    "$TERRACE" pool destroy "$POOL" --yes
    if [ -n "$QEMU" ]; then
        image=$SCRATCH/image.qcow2
        qemu-img create -q -f qcow2 "$image" "${size}M" || continue
        if [ "$QEMU" = qemu-storage-daemon ]; then
            qemu-storage-daemon --blockdev "driver=file,filename=$image,cache.direct=on,node-name=f" \
                --blockdev driver=qcow2,file=f,node-name=q --nbd-server "addr.type=unix,addr.path=$SCRATCH/qemu.sock" \
                --export type=nbd,id=e,node-name=q,name=v,writable=on &
        else
            qemu-nbd --socket="$SCRATCH/qemu.sock" --format=qcow2 --cache=none --aio=native --persistent --shared=8 -x v "$image" &
        fi
        peer_pid=$!
        wait_for_socket "$SCRATCH/qemu.sock"
        measure qemu "nbd+unix:///v?socket=$SCRATCH/qemu.sock"
        end_peer
        rm -f "$image" "$SCRATCH/qemu.sock"
    fi
    POOL=iometer$round
    FAST=$(losetup --find --show --direct-io=on --sizelimit $((size << 20)) "$SCRATCH/pool.img") &&
        SLOW=$(losetup --find --show --direct-io=on --sizelimit $((size << 21)) "$SCRATCH/slow.img") || exit 1
    slow_devices_enter "$FAST" "$FAST_IOPS" "$SLOW" "$SLOW_IOPS" || { slow_devices_leave; throttled=no; }
    measure fast "$FAST" lay $((size / 2))
    measure fast "$FAST" iometer
    for memory in $((size / 4)) "$TIER_MEMORY"; do
        wipefs -qa "$FAST" "$SLOW"
        "$TERRACE" pool create "$POOL" --tier "fast=$FAST" --tier "slow=$SLOW" -o "memory=${memory}M" --force &&
            "$TERRACE" volume create "$POOL/v" --size "$((size * 3 / 2))M" --sparse || exit 1
        if device=$("$TERRACE" attach "$POOL/v"); then
            measure "tiers-$memory" "$device" lay $((size * 3 / 2))
            for _ in 1 2; do
                fio --name=train --ioengine=libaio --direct=1 --bs=8k --iodepth=8 --rw=randread --filename="$device" --size="$((size / 2))M" \
                    --runtime=$((seconds * 3)) --time_based --randrepeat=0 >/dev/null 2>&1
                settle
            done
            "$TERRACE" where "$POOL/v" >&2
            measure "tiers-$memory" "$device" iometer
        fi
        "$TERRACE" detach "$POOL/v"
        "$TERRACE" pool destroy "$POOL" --yes
    done
    slow_devices_leave
    losetup -d "$FAST" "$SLOW"
    FAST='' SLOW=''
done

# $1 job, $2 what it is compared with, rest targets
row() {
    local job=$1 target raw
    raw=$(median "$2" "$job")
    shift 2
    printf '| %s | %d |' "$job" "$raw"
    for target in "$@"; do
        awk -v f="$(median "$target" "$job")" -v raw="$raw" 'BEGIN { printf " %d (%.2f) |", f, raw ? f / raw : 0 }'
    done
    printf '\n'
}
median() { awk -v t="$1" -v j="$2" '$1 == t && $2 == j { print $3 }' "$RESULTS" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] + 0 }'; }
table() {
    local job
    printf '| job |'; printf ' %s |' "${TARGETS[@]}"; printf '\n|---|'; printf -- '---|%.0s' "${TARGETS[@]}"; printf '\n'
    for job in "${JOBS[@]}"; do row "$job" raw "${TARGETS[@]:1}"; done
    printf '\nAn attached volume of %s MiB on a fast tier of %s (%s) and a slow one of %s (%s); the loads of the iometer table of TIER over %s MiB that the mover\n' \
        $((size * 3 / 2)) "$size" "$([ $throttled = yes ] && echo "$FAST_IOPS requests a second" || echo 'not slowed down')" $((size * 2)) \
        "$([ $throttled = yes ] && echo "$SLOW_IOPS" || echo 'nor this')" $((size / 2))
    printf 'has seen in use, 8 requests at a time, beside the fast device alone; with memory for a part of that, and with as much as TIER had for its table:\n'
    printf '\n| job | fast device | tiers, %s MiB of memory | %s MiB |\n|---|---|---|---|\n' $((size / 4)) "$TIER_MEMORY"
    for job in "${IOMETER[@]}"; do row "$job" fast "tiers-$((size / 4))" "tiers-$TIER_MEMORY"; done
    printf '\n%s, `make bench-volumes BENCH="%s %s %s"`, medians of %s rounds: IOPS, in parentheses the ratio to the raw file, or to the fast device, of the same run.\n' \
        "$(date -I)" "$size" "$rounds" "$seconds" "$rounds"
    printf '`nbd`, `nbdkit` (the raw file, through the page cache) and `qemu` (%s, a qcow2 image) are asked by fio over a Unix socket.\n' "${QEMU:-none here}"
    printf '`flush-p50`: pairs of a write and a flush a second if each took as long as the median one. `-half`: data that compresses to half. Load at the end: %s.\n' "$(cut -d' ' -f1 /proc/loadavg)"
}
table | tee "$SCRATCH/table"
page=docs/performance.md
grep -q '<!-- bench-volumes -->' "$page" || printf '\n## Volumes\n\n<!-- bench-volumes -->\n<!-- /bench-volumes -->\n' >>"$page"
awk -v table="$SCRATCH/table" '/<!-- bench-volumes -->/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /<!-- \/bench-volumes -->/ { skip = 0 } !skip' "$page" | awk '!(/<!-- bench-volumes -->/ && seen++)' >"$SCRATCH/page" && cp "$SCRATCH/page" "$page"
