#!/usr/bin/env bash
# Measures whether the daemon keeps to its memory budget: for each step of the list its peak (VmHWM), what `status` counts, and
# what it holds after a minute of rest. A step passes if the peak is at most 1.1 x the budget + 48 MiB, and the rest at most the
# budget + 16 MiB (the program itself and the stacks of its threads). Exit status 1 if a step does not.
#   scripts/bench-memory.sh [STEP...]     default: all of create remove names writes scrub verify small datasets chunks
# Sizes: FILES (1000000), NAMES (10000000), CHUNKS (8000000, of 4 KiB), DATASETS (1000), WRITE_MB (4096), REST (60, seconds),
# MEMORY (128M; the step chunks has 512M, the step small 32M). TERRACE_BENCH_BINARY: a terrace that is there already.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
files=${FILES:-1000000} names=${NAMES:-10000000} chunks=${CHUNKS:-8000000} datasets=${DATASETS:-1000}
write_mb=${WRITE_MB:-4096} rest=${REST:-60} memory=${MEMORY:-128M}
[ "$(id -u)" = 0 ] || { echo "run as root: it mounts" >&2; exit 1; }
[ -c /dev/fuse ] || { echo "there is no /dev/fuse here" >&2; exit 1; }
command -v python3 >/dev/null || { echo "there is no python3 here" >&2; exit 1; }
binary=${TERRACE_BENCH_BINARY:-}
[ -n "$binary" ] || { cargo build --release --quiet --bin terrace || exit 1; binary=${CARGO_TARGET_DIR:-$PWD/target}/release/terrace; }
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(create remove names writes scrub verify small datasets chunks)
# shellcheck source=scripts/scratch-pool.sh
. scripts/scratch-pool.sh
scratch_begin "$binary"
failed=0

# $1 kB; as MiB
mib() { printf '%d' $(($1 / 1024)); }
# $1 field, $2 process; kB
held() { awk -v field="$1:" '$1 == field { print $2 }' "/proc/$2/status" 2>/dev/null; }
budget_kb() { numfmt --from=iec "$1" | awk '{ print int($1 / 1024) }'; }
status_of() { # $1 field of memory, bytes
    timeout 60 "$TERRACE" status "$POOL" --json |
        python3 -c 'import json,sys; s=json.load(sys.stdin); s=s[0] if isinstance(s,list) else s; s=s.get("pools",[s])[0] if isinstance(s,dict) else s; print(s["memory"][sys.argv[1]])' "$1"
}
begin() { echo 5 >"/proc/$daemon/clear_refs"; }
# $1 step, $2 budget, $3 peak kB, $4 counted bytes, $5 rest kB or -
report() {
    local budget limit verdict=pass
    budget=$(budget_kb "$2")
    limit=$((budget * 11 / 10 + 48 * 1024))
    [ "$3" -le "$limit" ] || verdict=FAIL
    if [ "$5" != - ] && [ "$5" -gt $((budget + 16 * 1024)) ]; then verdict=FAIL; fi
    [ $verdict = pass ] || failed=1
    printf '%-10s budget %5s  counted %5s  peak %5s of %5s  rest %5s MiB  %s\n' "$1" "$(mib "$budget")" \
        "$(($4 / 1048576))" "$(mib "$3")" "$(mib $limit)" "$([ "$5" = - ] && echo - || mib "$5")" $verdict
}
finish() { # $1 step, $2 budget
    local peak counted_now
    peak=$(held VmHWM "$daemon")
    counted_now=$(status_of used_bytes)
    sleep "$rest"
    report "$1" "$2" "$peak" "$counted_now" "$(held VmRSS "$daemon")"
}
pool() { # $1 memory, $2 further properties of the dataset
    timeout 60 "$TERRACE" pool create "$POOL" --tier "fast=$SCRATCH/fast.img:${POOL_SIZE:-64G}" -o "memory=$1" >/dev/null &&
        timeout 60 "$TERRACE" fs create "$POOL/data" ${2:+-o "$2"} >/dev/null &&
        timeout 60 "$TERRACE" mount "$POOL/data" "$MOUNT" >/dev/null && mountpoint -q "$MOUNT" || exit 1
    daemon=$(scratch_daemon)
}
no_pool() {
    timeout 60 "$TERRACE" unmount "$MOUNT" >/dev/null 2>&1
    timeout 120 "$TERRACE" pool destroy "$POOL" --yes --force >/dev/null 2>&1
    rm -f "$SCRATCH/fast.img"
}

# Files and names by the thousand: python3 makes some 50,000 calls a second, a shell a hundredth of that.
operate() { python3 - "$MOUNT" "$@" <<'PYTHON'
import os, sys
from concurrent.futures import ThreadPoolExecutor
mount, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
per = 10000
def directory(number): return f"{mount}/{what.split('-')[0]}/{number // per}"
def each(work):
    for first in range(0, count, per):
        place = directory(first)
        work(place, range(first, min(first + per, count)))
def create(place, numbers):
    os.makedirs(place, exist_ok=True)
    for number in numbers:
        os.close(os.open(f"{place}/f{number}", os.O_CREAT | os.O_WRONLY, 0o644))
def link(place, numbers):
    os.makedirs(place, exist_ok=True)
    one = f"{place}/one"
    os.close(os.open(one, os.O_CREAT | os.O_WRONLY, 0o644))
    for number in numbers:
        os.link(one, f"{place}/name-{number}")
def remove(place, numbers):
    for entry in list(os.scandir(place)):
        os.unlink(entry.path)
    os.rmdir(place)
def chunk(place, numbers):
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/content", "wb", buffering=0) as file:
        for first in range(numbers.start, numbers.stop, 256):
            last = min(first + 256, numbers.stop)
            file.write(b"".join(number.to_bytes(8, "little") + bytes(4088) for number in range(first, last)))
each({"create": create, "create-remove": remove, "names": link, "names-remove": remove, "chunks": chunk}[what])
PYTHON
}
snapshot() { timeout 120 "$TERRACE" snapshot "$POOL/data@$1" >/dev/null; }

step_create() {
    begin
    operate create "$files"
    finish create "$memory"
}
step_remove() {
    [ -d "$MOUNT/create" ] || operate create "$files"
    snapshot before-remove
    begin
    operate create-remove "$files"
    finish remove "$memory"
}
step_names() {
    begin
    operate names "$names"
    finish names "$memory"
    snapshot before-names
    begin
    operate names-remove "$names"
    finish unname "$memory"
}
step_writes() {
    local writers=()
    begin
    local writer
    for writer in $(seq 32); do
        dd if=/dev/urandom of="$MOUNT/w$writer" bs=1M count=$((write_mb / 32)) oflag=direct status=none &
        writers+=($!)
    done
    wait "${writers[@]}"
    finish writes "$memory"
}
step_scrub() {
    begin
    timeout 3600 "$TERRACE" scrub "$POOL" --wait >/dev/null 2>&1
    finish scrub "$memory"
}
step_verify() {
    timeout 60 "$TERRACE" unmount "$MOUNT" >/dev/null
    timeout 300 "$TERRACE" stop "$POOL" >/dev/null
    "$TERRACE" verify "$POOL" >"$SCRATCH/verify" 2>&1 &
    local verify=$! peak=0 now
    while kill -0 $verify 2>/dev/null; do
        now=$(held VmHWM $verify)
        [ "${now:-0}" -gt "$peak" ] && peak=$now
        sleep 0.02
    done
    wait $verify || { cat "$SCRATCH/verify"; failed=1; }
    report verify "$memory" "$peak" 0 -
    timeout 120 "$TERRACE" mount "$POOL/data" "$MOUNT" >/dev/null
    daemon=$(scratch_daemon)
}
step_datasets() {
    local number
    for number in $(seq "$datasets"); do
        timeout 60 "$TERRACE" fs create "$POOL/d$number" >/dev/null
        mkdir "$SCRATCH/d$number"
        timeout 60 "$TERRACE" mount "$POOL/d$number" "$SCRATCH/d$number" >/dev/null
    done
    begin
    for number in $(seq "$datasets"); do
        (cd "$SCRATCH/d$number" && mkdir x && for name in {1..200}; do : >x/$name; done)
    done
    ls -lR "$SCRATCH"/d* >/dev/null
    finish datasets "$memory"
    for number in $(seq "$datasets"); do timeout 60 "$TERRACE" unmount "$SCRATCH/d$number" >/dev/null; done
}


pool "$memory"
for step in "${steps[@]}"; do
    case $step in
    small)
        no_pool
        pool 32M
        memory=32M files=$((files / 10)) step_create
        memory=32M files=$((files / 10)) step_remove
        writers=()
        memory=32M step_writes
        no_pool
        pool "$memory"
        ;;
    chunks)
        no_pool
        pool 512M chunk_size=4K
        begin
        operate chunks "$chunks"
        finish chunks 512M
        memory=512M step_verify
        no_pool
        pool "$memory"
        ;;
    *) "step_$step" ;;
    esac
done
exit $failed
