#!/usr/bin/env bash
# Measures a pool of two tiers beside bcache, dm-cache (smq) and dm-writecache, each in a virtual machine of its own on
# the same two disks, which qemu slows down. Prints the tables and keeps them in docs/performance.md between their
# markers, with the date and the command. Needs no root, no loop device and no module of this machine's kernel.
#   scripts/bench-peers.sh [SECONDS] [FAST_IOPS] [SLOW_IOPS]       default 5 20000 150; seconds for each cell
# TERRACE_BENCH_BINARY: an optimised terrace that is there already. TERRACE_BENCH_SYSTEMS: which of "raw dm-cache
# dm-writecache bcache terrace". TERRACE_BENCH_GROUPS: which of "table contiguous scattered". TERRACE_BENCH_CONSOLES: a directory that
# keeps what the guests said; what an earlier run kept there of systems that are left out stays in the tables. TERRACE_BENCH_KEEP=no: leaves the document alone. TERRACE_GUEST_PACKAGE: a linux-image-*.deb (else
# Debian's is downloaded). TERRACE_GUEST_ACCEL: kvm or tcg (else kvm where a guest comes up with it).
#
# Fast 128 MiB, slow 1 GiB and 100 MB/s; 576 MiB of data, all of it on the slow disk when a group of jobs begins: the
# table of TIER on 64 MiB, hot sets on the other 512 (contiguous: nine in ten requests to a tenth of it; scattered: zipf 1.2
# over blocks of 4 KiB). O_DIRECT, 4 KiB, libaio, iodepth 4. The peers are measured on their block devices, Terrace as a
# file in a mounted filesystem, with the least memory that a pool takes. The same commands in the same order for each.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-5} fast_iops=${2:-20000} slow_iops=${3:-150}
systems=${TERRACE_BENCH_SYSTEMS:-raw dm-cache dm-writecache bcache terrace}
groups=${TERRACE_BENCH_GROUPS:-table contiguous scattered}
[ "$(uname -m)" = x86_64 ] || { echo "the guests are x86_64: skipped" >&2; exit 0; }
tools='qemu-system-x86_64 busybox fio dmsetup make-bcache strip'
PATH=$PATH:/usr/sbin:/sbin
missing() { for tool in $tools; do command -v "$tool" >/dev/null || echo "$tool"; done; }
[ -n "$(missing)" ] && scripts/install-deps.sh bench-peers
[ -n "$(missing)" ] && { echo "skipped: there is no $(missing | tr '\n' ' ')" >&2; exit 0; }
BUSYBOX=$(command -v busybox)
LC_ALL=C ldd "$BUSYBOX" >/dev/null 2>&1 && { echo "skipped: busybox is not static (install busybox-static)" >&2; exit 0; }
binary=${TERRACE_BENCH_BINARY:-}
[ -n "$binary" ] || { cargo build --release --quiet --bin terrace || exit 1; binary=${CARGO_TARGET_DIR:-$PWD/target}/release/terrace; }

SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/terrace-peers.XXXXXX")
RESULTS=$SCRATCH/results CONSOLES=${TERRACE_BENCH_CONSOLES:-$SCRATCH/consoles}
mkdir -p "$CONSOLES" || exit 1
guest_pid=''
cleanup() {
    [ -n "$guest_pid" ] && while kill -9 "$guest_pid" 2>/dev/null; do sleep 0.1; done
    rm -rf "$SCRATCH"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Sets KERNEL and MODULES, of a kernel that has the peers (that of clouds has no bcache).
find_kernel() {
    local package=${TERRACE_GUEST_PACKAGE:-} name
    if [ -z "$package" ]; then
        name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends:/ { print $2; exit }')
        echo "downloading ${name:-linux-image-amd64}" >&2
        (cd "$SCRATCH" && apt-get download -qq "${name:-linux-image-amd64}" >/dev/null 2>&1)
        package=$(ls "$SCRATCH"/linux-image-*.deb 2>/dev/null | head -n 1)
    fi
    [ -n "$package" ] && dpkg-deb -x "$package" "$SCRATCH/kernel" || return 1
    KERNEL=$(ls "$SCRATCH"/kernel/boot/vmlinuz-* | head -n 1)
    MODULES=$SCRATCH/kernel/lib/modules/${KERNEL##*/vmlinuz-}
    [ -r "$KERNEL" ] && [ -d "$MODULES" ]
}
find_kernel || { echo "skipped: no kernel package (TERRACE_GUEST_PACKAGE names none, and none could be downloaded)" >&2; exit 0; }

root=$SCRATCH/initramfs
mkdir -p "$root"/{bin,dev,proc,sys,run,tmp,etc,mnt,modules}
: >"$root/modules/order"
# $1 module: it and those that it depends on, in the order in which they go in. What is built in has no file.
add_module() {
    local found name
    found=$(find "$MODULES" \( -name "${1//[-_]/[-_]}.ko" -o -name "${1//[-_]/[-_]}.ko.*" \) | head -n 1)
    [ -n "$found" ] || return 0
    name=$(basename "${found%.ko*}")
    grep -qx "$name" "$root/modules/order" && return
    case "$found" in
    *.xz) xz -dc "$found" ;;
    *.zst) zstd -qdc "$found" ;;
    *) cat "$found" ;;
    esac >"$root/modules/$name.ko"
    for dependency in $(tr '\0' '\n' <"$root/modules/$name.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do add_module "$dependency"; done
    echo "$name" >>"$root/modules/order"
}
for module in crc32c_generic virtio_pci virtio_blk fuse loop ext4 dm-cache dm-cache-smq dm-writecache bcache; do add_module "$module"; done
# $1 program, $2 its name there
add_program() {
    cp -L "$1" "$root/bin/$2"
    for library in $(LC_ALL=C ldd "$1" | grep -o '/[^ ]*'); do (cd / && cp -Ln --parents "$library" "$root"); done
}
cp "$BUSYBOX" "$root/bin/busybox"
add_program "$(command -v fio)" fio
add_program "$(command -v dmsetup)" dmsetup
add_program "$(command -v make-bcache)" make-bcache
add_program "$binary" terrace
strip "$root/bin/terrace"
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox mkdir -p /usr/bin /usr/sbin /sbin
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /run/state; export TERRACE_STATE_DIR=/run/state XDG_RUNTIME_DIR=/run HOME=/
end() { echo "GUEST-$*"; poweroff -f; }
echo GUEST-UP
for word in $(cat /proc/cmdline); do case $word in bench.*) eval "${word#bench.}" ;; esac; done
[ "$system" = probe ] && end OK
while read -r module; do insmod "/modules/$module.ko" || end "FAILED insmod $module"; done </modules/order
FAST=/dev/vda SLOW=/dev/vdb
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -b $SLOW ] && break; sleep 1; done
[ -b $SLOW ] || end "FAILED there are no disks"
SECTORS=$(cat /sys/block/vdb/size) FAST_SECTORS=$(cat /sys/block/vda/size)

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
# A bucket of 128 KiB (default 512): the cache is small. Nothing goes past it, however busy it is.
make_bcache() { make-bcache --bucket 128k --writeback -C $FAST -B $SLOW >/dev/null; }
up_bcache() {
    for device in $FAST $SLOW; do echo $device >/sys/fs/bcache/register || return 1; done
    for _ in $(seq 50); do [ -e /sys/block/bcache0/bcache/cache ] && break; usleep 100000; done
    TARGET=/dev/bcache0 SET=$(readlink -f /sys/block/bcache0/bcache/cache)
    echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
    echo 0 >"$SET/congested_read_threshold_us" && echo 0 >"$SET/congested_write_threshold_us" && echo writeback >/sys/block/bcache0/bcache/cache_mode
}
down_bcache() {
    echo 1 >/sys/block/bcache0/bcache/stop && echo 1 >"$SET/stop"
    for _ in $(seq 100); do [ -e /sys/block/bcache0 ] || [ -e "$SET" ] || return 0; usleep 100000; done
    return 1
}
make_terrace() {
    rm -rf $TERRACE_STATE_DIR && mkdir $TERRACE_STATE_DIR || return 1
    terrace pool create pool --tier fast=$FAST --tier slow=$SLOW -o memory=32M --force >/dev/null && terrace fs create pool/data || return 1
    terrace mount pool/data /mnt && fio --name=lay --ioengine=libaio --direct=1 --filename=/mnt/file --size=576M --bs=1M --rw=write \
        --refill_buffers --end_fsync=1 >/dev/null && terrace demote pool/data/file --wait >/dev/null 2>&1 && terrace tier clear-heat pool && tell
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
    slow=$(requests vdb) fast=$(requests vda)
    line=$(fio --name=j --ioengine=libaio --direct=1 --bs=4k --iodepth=4 --refill_buffers --filename="$TARGET" --runtime="$seconds" --time_based \
        --randrepeat=0 --output-format=terse --terse-version=3 "$@" 2>&1)
    slow=$(($(requests vdb) - slow)) fast=$(($(requests vda) - fast))
    echo "$line" | grep ';' | awk -F';' -v name="$system $cell" -v slow="$slow" -v fast="$fast" '{
        all = ($6 + $47) / 4
        printf "RESULT %s %d %.5f %.5f\n", name, $8 + $49, all ? slow / all : 0, all ? fast / all : 0 }'
    echo "$line" | grep -q ';' || echo "fio: $line"
}
# Until the slow disk has had next to nothing to do for eight seconds; 40 at most.
settle() {
    local quiet=0 waited=0 was now
    was=$(requests vdb)
    while [ $quiet -lt 8 ] && [ $waited -lt 40 ]; do
        sleep 1
        waited=$((waited + 1)) now=$(requests vdb)
        if [ $((now - was)) -lt 5 ]; then quiet=$((quiet + 1)); else quiet=0; fi
        was=$now
    done
    echo "settled after $waited s"
}
TABLE='--offset=512M --size=64M' HOT='--size=512M'
ZIPF='--random_distribution=zipf:1.2' ZONED='--random_distribution=zoned:90/10:10/90'
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
        table) run train-$1 --rw=randread $TABLE --runtime=$((seconds * 4)) ;;
        contiguous) run train-$1 --rw=randread $HOT $ZONED --runtime=$((seconds * 4)) ;;
        scattered) run train-$1 --rw=randread $HOT $ZIPF --runtime=$((seconds * 4)) ;;
        esac
        settle
    done
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
    "down_$name" && "up_$name" || end "FAILED cannot restart $system"
    jobs_of "$group" -restart; tell
    "down_$name" || end "FAILED cannot take $system down"
done
end OK
INIT
chmod +x "$root/init"
(cd "$root" && find . | "$BUSYBOX" cpio -o -H newc 2>/dev/null) >"$SCRATCH/initramfs.cpio"
rm -rf "$root"

# On a loaded machine an emulated timer comes too late for the kernel's check of it, hence no_timer_check. $1 accelerator, $2 system, $3 most
# seconds. The disks are in this machine's memory (cache=unsafe): how fast they are is for the throttle to say, which has no bursts.
guest() {
    local accel=$1 system=$2 waited=0 cpu=max
    [ "$accel" = kvm ] && cpu=host
    rm -f "$SCRATCH"/*.img
    truncate -s 128M "$SCRATCH/fast.img" && truncate -s 1G "$SCRATCH/slow.img" || exit 1
    CONSOLE=$SCRATCH/console.$system
    : >"$CONSOLE"
    nice -n "${TERRACE_BENCH_NICE:-0}" qemu-system-x86_64 -accel "$accel" -cpu $cpu -machine q35 -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot -display none \
        -serial "file:$CONSOLE" -kernel "$KERNEL" -initrd "$SCRATCH/initramfs.cpio" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check bench.system=$system bench.seconds=$seconds bench.groups=${groups// /,}" \
        -object iothread,id=io \
        -drive "if=none,id=fast,file=$SCRATCH/fast.img,format=raw,cache=unsafe,throttling.iops-total=$fast_iops" \
        -device virtio-blk-pci,drive=fast,iothread=io \
        -drive "if=none,id=slow,file=$SCRATCH/slow.img,format=raw,cache=unsafe,throttling.iops-total=$slow_iops,throttling.bps-total=100000000" \
        -device virtio-blk-pci,drive=slow,iothread=io >"$SCRATCH/qemu.$system" 2>&1 &
    guest_pid=$!
    disown "$guest_pid"
    while kill -0 "$guest_pid" 2>/dev/null && [ $((waited += 1)) -lt "$3" ]; do
        sleep 1
        show
    done
    while kill -9 "$guest_pid" 2>/dev/null; do sleep 0.1; done
    guest_pid=''
    show
    [ "$system" = probe ] || tr -d '\r' <"$CONSOLE" >"$CONSOLES/$system"
    grep -aq GUEST-OK "$CONSOLE"
}
# What of the console has not been shown yet.
shown=0
show() {
    local lines
    lines=$(wc -l <"$CONSOLE")
    [ "$lines" -lt "$shown" ] && shown=0
    [ "$lines" -gt "$shown" ] && sed -n "$((shown + 1)),${lines}p" "$CONSOLE" | tr -d '\r' | grep -aE '^(RESULT|PHASE|settled|GUEST-FAILED|fio:)' >&2
    shown=$lines
}
accel=${TERRACE_GUEST_ACCEL:-}
[ -n "$accel" ] || { [ -w /dev/kvm ] && guest kvm probe 20 && accel=kvm || accel=tcg; }
echo "the guests run with $accel" >&2
status=0 load_at_start=$(cut -d' ' -f1 /proc/loadavg)
for system in $systems; do
    shown=0
    echo "== $system" >&2
    began=$SECONDS
    if ! guest $accel "$system" $((600 + seconds * 300)); then
        echo "the guest of $system did not end well:" >&2
        tail -n 15 "$CONSOLE" >&2
        cat "$SCRATCH/qemu.$system" >&2
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
    awk -v cell="$1-$2" -v job="$1" -v alone="$(value fast "$1-alone" 3)" -v slow_iops="$slow_iops" -v fast_iops="$fast_iops" '
        function allowed(s, f,   a, b) { a = s > 0 ? slow_iops / s : 1e9; b = f > 0 ? fast_iops / f : 1e9; return a < b ? a : b }
        function verdict(mine, best) { return mine && best ? sprintf("%.2f%s", mine / best, mine < best ? " (lost)" : "") : "-" }
        $2 == cell { iops[$1] = $3; slow[$1] = $4; allow[$1] = allowed($4, $5) }
        END {
            count = split("dm-cache dm-writecache bcache terrace", systems, " ")
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
    local phase group cell load
    for phase in 'before:Before training:' 'after:After training:' 'restart:After a restart:'; do
        printf '%s\n\n' "${phase#*:}"
        printf '| job | fast alone | dm-cache | dm-writecache | bcache | terrace | terrace / best peer | by the disks alone |\n|---|---|---|---|---|---|---|---|\n'
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
    printf '%s, `make bench-peers BENCH="%s %s %s"` with %s: IOPS over %s s each · requests of the slow disk for each of fio. Load %s to %s.\n' \
        "$(date -I)" "$seconds" "$fast_iops" "$slow_iops" "$accel" "$seconds" "$load_at_start" "$load"
}
tables >"$SCRATCH/tables"
cat "$SCRATCH/tables"
[ "${TERRACE_BENCH_KEEP:-yes}" = no ] && exit $status
page=docs/performance.md
grep -q '<!-- bench-peers -->' "$page" || printf '\n## Tiers beside bcache, dm-cache and dm-writecache\n\n<!-- bench-peers -->\n<!-- /bench-peers -->\n' >>"$page"
awk -v table="$SCRATCH/tables" '/<!-- bench-peers -->/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /<!-- \/bench-peers -->/ { skip = 0 } !skip' "$page" >"$SCRATCH/page" && cp "$SCRATCH/page" "$page"
exit $status
