#!/usr/bin/env bash
# Measures a pool of two tiers beside bcache, dm-cache (smq) and dm-writecache, each in a virtual machine of its own on
# the same two slow disks. Prints the tables and keeps them in docs/performance.md between their markers, with the date and
# the command. Needs no root, no loop device and no module of this machine's kernel.
#   scripts/bench-peers.sh [SECONDS] [FAST_IOPS] [SLOW_IOPS]       default 5 20000 150; most seconds for each cell
# TERRACE_BENCH_BINARY: an optimised terrace that is there already. TERRACE_BENCH_SYSTEMS: which of "raw dm-cache
# dm-writecache bcache terrace". TERRACE_BENCH_GROUPS: which of "table contiguous scattered". TERRACE_BENCH_CONSOLES: a directory that
# keeps what the guests said; what an earlier run kept there of systems that are left out stays in the tables.
# TERRACE_BENCH_KEEP=no: leaves the document alone. TERRACE_GUEST_PACKAGE: a linux-image-*.deb (else Debian's is downloaded).
# TERRACE_GUEST_ACCEL: kvm or tcg (else kvm where a guest comes up with it). TERRACE_BENCH_DILATION, TERRACE_BENCH_PROCESSORS (1, or 2 with
# kvm): see below.
#
# Fast 128 MiB, slow 1 GiB; 576 MiB of data, all of it on the slow disk when a group of jobs begins: the
# table of TIER on 64 MiB, hot sets on the other 512 (contiguous: nine in ten requests to a tenth of it; scattered: zipf 1.2
# over blocks of 4 KiB). O_DIRECT, 4 KiB, libaio, iodepth 4. A cell ends after its seconds, or when it has made as many requests as
# the fast disk serves in two. The peers are measured on their block devices, Terrace as a
# file in a mounted filesystem, with 32 MiB of memory, the least that a pool takes. The same commands in the same order for each.
#
# The disks are null_blk in the guest's memory: one request after the other, each in the same time of the guest's clock. Where there
# is no KVM, qemu emulates the processor, slower than a real one, which punishes a system that does its work in a program. So the
# guest's clock goes by instructions (-icount, one nanosecond each, time without work is skipped), whatever else runs on the machine, and
# the disks are slowed down as much as the processor is (time dilation: Gupta et al., "To Infinity and Beyond", NSDI 2006;
# "DieCast", NSDI 2008): a load of 4 KiB requests to a file in memory takes so many times the processor time there that it takes here,
# the least of seven. Seconds are that many seconds of the guest, and IOPS are reported times that. Limits: the processors of a guest share its
# clock, so that two are dilated twice as much, and one of them alone is then twice as fast as it should be: one is the
# cautious choice (program, kernel and fio share it). Every instruction takes the same time: caches, branches and idle states cost nothing. The guest's own
# clock is not dilated, so that periods (a commit every five seconds, write-back after thirty) pass faster beside the disks than they should.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-5} fast_iops=${2:-20000} slow_iops=${3:-150}
systems=${TERRACE_BENCH_SYSTEMS:-raw dm-cache dm-writecache bcache terrace}
groups=${TERRACE_BENCH_GROUPS:-table contiguous scattered}
[ "$(uname -m)" = x86_64 ] || { echo "the guests are x86_64: skipped" >&2; exit 0; }
# shellcheck source=scripts/guest.sh
. scripts/guest.sh
tools=(fio dmsetup make-bcache strip)
guest_tools "${tools[@]}" || scripts/install-deps.sh bench-peers
guest_tools "${tools[@]}" || { echo "skipped: $REASON" >&2; exit 0; }
binary=${TERRACE_BENCH_BINARY:-}
[ -n "$binary" ] || { cargo build --release --quiet --bin terrace || exit 1; binary=${CARGO_TARGET_DIR:-$PWD/target}/release/terrace; }

SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/terrace-peers.XXXXXX")
RESULTS=$SCRATCH/results CONSOLES=${TERRACE_BENCH_CONSOLES:-$SCRATCH/consoles}
mkdir -p "$CONSOLES" || exit 1
cleanup() {
    guest_kill
    [ -n "$LOAD_FILE" ] && rm -f "$LOAD_FILE"
    rm -rf "$SCRATCH"
}
LOAD_FILE=''
trap cleanup EXIT
trap 'exit 130' INT TERM
guest_kernel newest --fetch null_blk || { echo "skipped: $REASON" >&2; exit 0; }

guest_root crc32c_generic configfs 'null_blk nr_devices=0' fuse loop ext4 dm-cache dm-cache-smq dm-writecache \
    'bcache bch_cutoff_writeback=70 bch_cutoff_writeback_sync=90' || exit 1
for program in fio dmsetup make-bcache; do guest_program "$(command -v $program)" $program; done
guest_program "$binary" terrace
strip "$ROOT/bin/terrace"
cat >"$ROOT/init" <<'INIT'
#!/bin/busybox sh
. /begin
mount -t tmpfs tmpfs /tmp
mkdir -p /run/state; export TERRACE_STATE_DIR=/run/state XDG_RUNTIME_DIR=/run HOME=/
for word in $(cat /proc/cmdline); do case $word in bench.*) eval "${word#bench.}" ;; esac; done
if [ "$system" = probe ]; then
    . /load
    load /tmp/load && end OK
fi
# Disks in memory that serve one request after the other, each in the same time: $1 name, $2 MiB, $3 ns. A request has at most 512 KiB.
make_disk() {
    local disk=/sys/kernel/config/nullb/$1
    mkdir "$disk" && echo "$2" >"$disk/size" && echo "$3" >"$disk/completion_nsec" || return 1
    for setting in memory_backed=1 irqmode=2 submit_queues=1 hw_queue_depth=1 max_sectors=1024 blocksize=512 power=1; do
        echo "${setting#*=}" >"$disk/${setting%=*}" || return 1
    done
    [ -b "/dev/$1" ]
}
mount -t configfs config /sys/kernel/config && make_disk fast 128 "$fast_ns" && make_disk slow 1024 "$slow_ns" || end "FAILED there are no disks"
FAST=/dev/fast SLOW=/dev/slow
SECTORS=$(cat /sys/block/slow/size) FAST_SECTORS=$(cat /sys/block/fast/size)

# Set up on disks that hold nothing; taken away and set up again over what they hold. The device is $TARGET.
up_dm_cache() {
    dmsetup create meta --table "0 8192 linear $FAST 0" &&
        dmsetup create cache --table "0 $((FAST_SECTORS - 8192)) linear $FAST 8192" &&
        dmsetup create target --table "0 $SECTORS cache $(node meta) $(node cache) $SLOW 128 1 writeback smq 0" && TARGET=$(node target)
}
node() { echo "/dev/dm-$(dmsetup info -c --noheadings -o minor "$1")"; }
down_dm_cache() { dmsetup remove target && dmsetup remove cache && dmsetup remove meta; }
up_dm_writecache() { dmsetup create target --table "0 $SECTORS writecache s $SLOW $FAST 4096 0" && TARGET=$(node target); }
down_dm_writecache() { dmsetup remove target; }
# A bucket of 128 KiB (default 512): the cache is small. Nothing goes past it, however busy it is, and writes not before it is 90 % full (the most).
make_bcache() { make-bcache --bucket 128k --writeback -C $FAST -B $SLOW >/dev/null; }
up_bcache() {
    for device in $FAST $SLOW; do until_so 300 register_bcache $device || return 1; done
    until_so 300 test -e /sys/block/bcache0/bcache/cache || return 1
    TARGET=/dev/bcache0 SET=$(readlink -f /sys/block/bcache0/bcache/cache)
    echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
    echo 0 >"$SET/congested_read_threshold_us" && echo 0 >"$SET/congested_write_threshold_us" && echo writeback >/sys/block/bcache0/bcache/cache_mode
}
down_bcache() {
    echo 1 >/sys/block/bcache0/bcache/stop && echo 1 >"$SET/stop"
    until_so 300 no_bcache
}
# A device that was just given up is busy for a moment.
register_bcache() { echo "$1" >/sys/fs/bcache/register; } 2>/dev/null
no_bcache() { [ ! -e /sys/block/bcache0 ] && [ ! -e "$SET" ]; }
lay_file() { fio --name=lay --ioengine=libaio --direct=1 --filename=/mnt/file --size=576M --bs=1M --rw=write --refill_buffers --end_fsync=1 >/dev/null; }
make_terrace() {
    rm -rf $TERRACE_STATE_DIR && mkdir $TERRACE_STATE_DIR || return 1
    terrace pool create pool --tier fast=$FAST --tier slow=$SLOW -o memory=32M --force >/dev/null && terrace fs create pool/data || return 1
    terrace mount pool/data /mnt && lay_file && terrace demote pool/data/file --wait >/dev/null 2>&1 && terrace tier clear-heat pool && tell
}
up_terrace() {
    terrace start pool >/dev/null 2>&1
    grep -q ' /mnt fuse' /proc/mounts || terrace mount pool/data /mnt
    TARGET=/mnt/file
}
down_terrace() { terrace stop pool; }
tell() {
    [ "$system" = terrace ] || return 0
    terrace where pool/data/file | head -n 6
    terrace tier devices pool; terrace jobs pool | tail -n 6; terrace iostat pool
    awk '/VmRSS|VmHWM/' /proc/"$(pidof terrace | tr ' ' '\n' | head -n 1)"/status
}
name=$(echo "$system" | tr - _)
begin() {
    for disk in $FAST $SLOW; do dd if=/dev/zero of=$disk bs=1M count=128 oflag=direct 2>/dev/null; done
    case $name in bcache | terrace) "make_$name" || return 1 ;; esac
    "up_$name"
}

requests() { awk '{ print $1 + $5 }' "/sys/block/$1/stat"; }
# $1 cell, rest: what fio does. Says IOPS, and requests of the slow and of the fast disk for each of fio.
run() {
    local cell=$1 slow fast line
    shift
    slow=$(requests slow) fast=$(requests fast)
    line=$(fio --name=j --ioengine=libaio --direct=1 --bs=4k --iodepth=4 --refill_buffers --filename="$TARGET" --runtime="$seconds" --io_size="${most}M" \
        --norandommap --randrepeat=0 --output-format=terse --terse-version=3 "$@" 2>&1)
    slow=$(($(requests slow) - slow)) fast=$(($(requests fast) - fast))
    echo "$line" | grep ';' | awk -F';' -v name="$system $cell" -v slow="$slow" -v fast="$fast" -v dilation="$dilation" '{
        all = ($6 + $47) / 4
        printf "RESULT %s %d %.5f %.5f\n", name, ($8 + $49) * dilation, all ? slow / all : 0, all ? fast / all : 0 }'
    echo "$line" | grep -q ';' || echo "fio: $line"
}
# Until the slow disk has had next to nothing to do for eight seconds; 40 at most. Seconds are those that are reported, as everywhere.
settle() {
    local quiet=0 waited=0 was now
    was=$(requests slow)
    while [ $quiet -lt 8 ] && [ $waited -lt 40 ]; do
        sleep "$dilation"
        waited=$((waited + 1)) now=$(requests slow)
        if [ $((now - was)) -lt 5 ]; then quiet=$((quiet + 1)); else quiet=0; fi
        was=$now
    done
    echo "settled after $waited s"
}
TABLE='--offset=512M --size=64M' HOT='--size=512M'
# zipf: the last is where the hottest block lies, else fio draws the places of the hot set anew for each job, and no training helps.
ZIPF='--random_distribution=zipf:1.2:0' ZONED='--random_distribution=zoned:90/10:10/90'
jobs_of() { # $1 group, $2 suffix
    case $1 in
    table)
        run seq-read$2 --rw=read $TABLE
        run rand-read$2 --rw=randread $TABLE
        run seq-write$2 --rw=write $TABLE
        run rand-write$2 --rw=randwrite $TABLE
        ;;
    contiguous | scattered)
        local how=$ZIPF
        [ $1 = contiguous ] && how=$ZONED
        run $1$2 --rw=randread $HOT $how
        run $1-mix$2 --rw=randrw --rwmixread=70 $HOT $how
        ;;
    esac
}
# Trains as the group reads, twice.
train() {
    for _ in 1 2; do
        case $1 in
        table) run train-$1 --rw=randread $TABLE --runtime="$training" --io_size="$((most * 2))M" ;;
        contiguous) run train-$1 --rw=randread $HOT $ZONED --runtime="$training" --io_size="$((most * 2))M" ;;
        scattered) run train-$1 --rw=randread $HOT $ZIPF --runtime="$training" --io_size="$((most * 2))M" ;;
        esac
        settle
    done
    # Else what it counts as full is what it filled since its last collection, and it writes through.
    [ $name = bcache ] && echo 1 >"$SET/internal/trigger_gc"
}
if [ "$system" = raw ]; then
    for disk in fast slow; do
        system=$disk TARGET=$FAST
        # Only the parts that fit the fast disk; the requests alone count.
        [ $disk = slow ] && TARGET=$SLOW
        TABLE='--size=64M' HOT='--size=128M'
        for group in $(echo "$groups" | tr , ' '); do jobs_of "$group" -alone; done
    done
    end OK
fi
for group in $(echo "$groups" | tr , ' '); do
    echo "PHASE $system: $group"
    begin || end "FAILED cannot set up $system"
    jobs_of "$group" -before; tell
    train "$group"; tell
    jobs_of "$group" -after; tell
    echo "PHASE $system: $group, after a restart"
    "down_$name" || end "FAILED cannot take $system down"
    "up_$name" || end "FAILED cannot restart $system"
    jobs_of "$group" -restart; tell
    "down_$name" || end "FAILED cannot take $system down"
done
end OK
INIT
# The load that says how slow the guest is, there and here: 4 KiB requests of a file in memory. Says nanoseconds of processor time for each.
cat >"$ROOT/load" <<'LOAD'
load() {
    fio --name=load --ioengine=psync --filename="$1" --bs=4k --size=16M --io_size=512M --norandommap --rw=randrw --rwmixread=70 --randrepeat=1 \
        --output-format=terse --terse-version=3 2>/dev/null | grep ';' |
        awk -F';' '{ print "LOAD", int((($9 > $50 ? $9 : $50) * ($88 + $89) * 1e4) / 131072) }'
}
LOAD
# shellcheck source=/dev/null
. "$ROOT/load"
guest_pack

# $1 system, $2 most seconds
guest() {
    local system=$1 waited=0
    CONSOLE=$SCRATCH/console.$system
    guest_start "mitigations=off tsc=reliable bench.system=$system bench.dilation=$dilation bench.seconds=$(scaled "$seconds" 1) \
        bench.training=$(scaled "$seconds" 4) bench.most=$((fast_iops / 128)) bench.fast_ns=$(scaled 1e9 "1/$fast_iops") bench.slow_ns=$(scaled 1e9 "1/$slow_iops") bench.groups=${groups// /,}" \
        -machine q35 -m 2560 "${processor[@]}"
    while guest_runs && [ $((waited += 1)) -lt "$2" ]; do
        sleep 1
        show
    done
    guest_kill
    show
    [ "$system" = probe ] || tr -d '\r' <"$CONSOLE" >"$CONSOLES/$system"
    grep -aq GUEST-OK "$CONSOLE"
}
# $1 times $2 of the guest's seconds or requests, as a whole number.
scaled() { awk "BEGIN { printf \"%d\", $1 * $2 * $dilation + 0.5 }"; }
# What of the console has not been shown yet.
shown=0
show() {
    local lines
    lines=$(wc -l <"$CONSOLE")
    [ "$lines" -lt "$shown" ] && shown=0
    [ "$lines" -gt "$shown" ] && sed -n "$((shown + 1)),${lines}p" "$CONSOLE" | tr -d '\r' | grep -aE '^(RESULT|PHASE|settled|GUEST-FAILED|fio:)' >&2
    shown=$lines
}
# Sets `processor`, what qemu is told of it, and `dilation`.
dilation=1 shown=0
accel=${TERRACE_GUEST_ACCEL:-}
if [ -z "$accel" ] || [ "$accel" = kvm ]; then
    processors=${TERRACE_BENCH_PROCESSORS:-2}
    processor=(-accel kvm -cpu host -smp "$processors")
    if [ -w /dev/kvm ] && guest probe 20; then accel=kvm; else accel=tcg; fi
fi
if [ "$accel" = tcg ]; then
    # Copying by `rep movsb` would count each byte as an instruction.
    processors=${TERRACE_BENCH_PROCESSORS:-1}
    processor=(-accel tcg -icount "shift=0,sleep=off" -cpu "max,-erms,-fsrm" -smp "$processors")
    dilation=${TERRACE_BENCH_DILATION:-}
    if [ -z "$dilation" ]; then
        dilation=1
        guest probe 300 || { guest_complaint 15 >&2; exit 1; }
        there=$(tr -d '\r' <"$CONSOLE" | awk '$1 == "LOAD" { print $2 }')
        LOAD_FILE=$(mktemp /dev/shm/terrace-load.XXXXXX) || exit 1
        here=$(for _ in 1 2 3 4 5 6 7; do load "$LOAD_FILE"; done | awk '!least || $2 < least { least = $2 } END { print least }')
        dilation=$(awk -v there="$there" -v here="$here" -v processors="$processors" 'BEGIN { printf "%.1f", processors * there / here }')
        echo "a request of the load takes $there ns there, $here ns here" >&2
    fi
fi
echo "the guests run with $accel, $processors processors, time dilated by $dilation" >&2
status=0 load_at_start=$(cut -d' ' -f1 /proc/loadavg)
for system in $systems; do
    shown=0
    echo "== $system" >&2
    began=$SECONDS
    if ! guest "$system" $((600 + seconds * 300)); then
        echo "the guest of $system did not end well:" >&2
        guest_complaint 15 >&2
        status=1
    fi
    echo "-- $system: $((SECONDS - began)) s" >&2
done
cat "$CONSOLES"/* | awk '$1 == "RESULT" { print $2, $3, $4, $5, $6 }' >"$RESULTS"

# $1 system, $2 cell, $3 field: 3 IOPS, 4 and 5 requests of the slow and the fast disk for each of fio.
value() { awk -v s="$1" -v c="$2" -v f="$3" '$1 == s && $2 == c { v = $f } END { print v == "" ? "-" : v }' "$RESULTS"; }
# One line of a table, of the cell $1-$2: IOPS and the share of the slow disk of each, and the last two against the best of
# the peers: measured, and as the two disks would allow it by their requests (the lower of their limits by requests for each of fio).
row() {
    awk -v columns="$columns" -v cell="$1-$2" -v job="$1" -v alone="$(value fast "$1-alone" 3)" -v slow_iops="$slow_iops" -v fast_iops="$fast_iops" '
        function allowed(s, f,   a, b) { a = s > 0 ? slow_iops / s : 1e9; b = f > 0 ? fast_iops / f : 1e9; return a < b ? a : b }
        function verdict(mine, best) { return mine && best ? sprintf("%.2f%s", mine / best, mine < best ? " (lost)" : "") : "-" }
        $2 == cell { iops[$1] = $3; slow[$1] = $4; allow[$1] = allowed($4, $5) }
        END {
            count = split(columns, systems, " ")
            line = "| " job " | " alone
            for (at = 1; at <= count; at++) {
                name = systems[at]
                line = line " | " (name in iops ? sprintf("%d · %.3f", iops[name], slow[name]) : "-")
                if (name != "terrace" && iops[name] > best) best = iops[name]
                if (name != "terrace" && allow[name] > most) most = allow[name]
            }
            print line " | " verdict(iops["terrace"], best) " | " verdict(allow["terrace"], most) " |"
        }' "$RESULTS"
}
tables() {
    local phase group cell load columns='dm-cache dm-writecache bcache terrace'
    for phase in 'before:Before training:' 'after:After training:' 'restart:After a restart:'; do
        printf '%s\n\n' "${phase#*:}"
        # shellcheck disable=SC2086
        printf '| job | fast alone | %s | terrace / best peer | by the disks alone |\n|%s\n' "${columns// / | }" "$(printf -- '---|%.0s' job alone $columns measured allowed)"
        for group in $groups; do
            case $group in
            table) set -- seq-read rand-read seq-write rand-write ;;
            *) set -- "$group" "$group-mix" ;;
            esac
            for cell in "$@"; do row "$cell" "${phase%%:*}"; done
        done
        echo
    done
    load=$(cut -d' ' -f1 /proc/loadavg)
    printf '%s, `make bench-peers BENCH="%s %s %s"` with %s, %s processors, time dilated by %s: IOPS over at most %s s each · requests of the slow disk for each of fio. Load %s to %s.\n' \
        "$(date -I)" "$seconds" "$fast_iops" "$slow_iops" "$accel" "$processors" "$dilation" "$seconds" "$load_at_start" "$load"
}
tables >"$SCRATCH/tables"
cat "$SCRATCH/tables"
[ "${TERRACE_BENCH_KEEP:-yes}" = no ] && exit $status
page=docs/performance.md
grep -q '<!-- bench-peers -->' "$page" || printf '\n## Tiers beside bcache, dm-cache and dm-writecache\n\n<!-- bench-peers -->\n<!-- /bench-peers -->\n' >>"$page"
awk -v table="$SCRATCH/tables" '/<!-- bench-peers -->/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /<!-- \/bench-peers -->/ { skip = 0 } !skip' "$page" >"$SCRATCH/page" && cp "$SCRATCH/page" "$page"
exit $status
