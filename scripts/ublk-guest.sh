#!/usr/bin/env bash
# Attaches volumes through ublk in a virtual machine (qemu, emulated), whose kernel has it: a filesystem on a volume, flush,
# FUA and discard, new sizes, snapshots, detaching under load, and the daemon killed with -9 with the device idle, in use
# and under writers. Ends with 4 KiB reads one at a time through ublk and through a loop device.
#   scripts/ublk-guest.sh TERRACE-BINARY [--fetch]
# The kernel is that of TERRACE_GUEST_PACKAGE (a linux-image-*.deb, or the several that newer ones are split into); with --fetch the newest of
# this Debian is downloaded. One without ublk_drv shows that a loop device takes its place. Skipped, with the reason, where qemu, a
# static busybox, mkfs.ext4 or a kernel is missing.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/stage.sh
binary=${1:?the terrace binary} fetch=${2:-}
# shellcheck source=scripts/guest.sh
. scripts/guest.sh
guest_tools mkfs.ext4 e2fsck strip || { skipped 1 "ublk guest: $REASON"; exit 0; }
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/terrace-ublk.XXXXXX")
cleanup() {
    guest_kill
    rm -rf "$SCRATCH"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
guest_kernel newest "$fetch" '' || { skipped 1 "ublk guest: $REASON"; exit 0; }

guest_root crc32c_generic crc32c_cryptoapi libcrc32c crc16 ublk_drv fuse loop ext4
guest_program "$binary" terrace
strip "$ROOT/bin/terrace"
guest_program "$(command -v mkfs.ext4)" mkfs.ext4
guest_program "$(command -v e2fsck)" e2fsck
command -v fio >/dev/null && guest_program "$(command -v fio)" fio
cat >"$ROOT/init" <<'INIT'
#!/bin/busybox sh
. /begin
mount -t tmpfs -o size=900M tmpfs /run; mount -t tmpfs -o size=64M tmpfs /tmp
mkdir -p /run/state; export TERRACE_STATE_DIR=/run/state XDG_RUNTIME_DIR=/run HOME=/
MARK=/run/state/run/volumes/pool/pool+vm++ublk LOG=/run/state/log/pool.log
stop() {
    echo "GUEST-FAILED $*"
    tail -n 25 $LOG; dmesg | tail -n 15; ls -l /dev/ublk* /dev/loop? 2>/dev/null; ps | grep -v '\[' | tail -n 15
    poweroff -f
}
ok() { echo "GUEST-STEP $* ($(cut -d. -f1 /proc/uptime) s)"; }
ip link set lo up
uname -r
daemon() { terrace status pool --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"daemon_pid": *\([0-9]*\).*/\1/p' | head -n 1; }
kill_daemon() { pid=$(daemon); kill -9 "$pid" || stop "kill -9 $pid"; until_so 60 test ! -d "/proc/$pid" || stop "it does not die"; }
# Counters of changes and of what was flushed of them.
counters() { od -An -tu8 -v -j64 -N8 $MARK; od -An -tu8 -v -j128 -N8 $MARK; }
flushed() { set -- $(counters); [ "$1" = "$2" ]; }
unflushed() { ! flushed; }
no_device() { [ -z "$(ls /dev/ublk[bc]* 2>/dev/null)$(ls /sys/class/ublk-char)" ]; }
size_of() { echo $(($(cat "/sys/block/${1##*/}/size") * 512)); }
referenced() { terrace list -t volume pool/vm --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"referenced_bytes": *\([0-9]*\).*/\1/p'; }

# Writes and never flushes, until it gets an error. Between two of its programs it has the device open as well: who detaches would find it unused.
write_on() {
    rm -f /tmp/noticed
    (exec 3<$device; while dd if=/dev/zero of=$device bs=4k count=4096 seek=$((80 << 8)) oflag=direct 2>/dev/null; do :; done; touch /tmp/noticed) &
}

terrace doctor | grep -A1 'attached volumes' || stop "doctor says nothing of attached volumes"
make_files() { for file in 1 2 3 4 5 6; do dd if=/dev/urandom of=/mnt/$1$file bs=64k count=16 2>/dev/null || return 1; done; (cd /mnt && sha256sum $1? >>/tmp/sums); }
same() { echo 3 >/proc/sys/vm/drop_caches; (cd /mnt && sha256sum -c /tmp/sums >/dev/null); }
terrace pool create pool --tier fast=/run/fast.img:512M -o memory=128M >/dev/null && terrace volume create pool/vm --size 64M --sparse || stop "no volume"
if [ ! -e /dev/ublk-control ]; then
    # Without ublk it is a loop device, and nothing more is to be tried here.
    terrace attach pool/vm --via ublk 2>/tmp/error && stop "attached through what is not there"
    grep -qi ublk /tmp/error || stop "$(cat /tmp/error)"
    device=$(terrace attach pool/vm) && [ "${device#/dev/loop}" != "$device" ] || stop "attached as '$device'"
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $device && mount -t ext4 -o discard $device /mnt && make_files a && umount /mnt &&
        mount -t ext4 -o discard $device /mnt && same || stop "a filesystem through a loop device"
    terrace volume resize pool/vm 80M >/dev/null && [ "$(size_of $device)" = $((80 << 20)) ] || stop "the new size of a device in use"
    umount /mnt && terrace detach pool/vm && terrace stop pool || stop "detach a loop device"
    ok "without ublk a volume is attached as $device"
    end OK
fi
terrace doctor | grep -q 'attached through ublk' || stop "doctor does not know of ublk"
device=$(terrace attach pool/vm) || stop attach
[ "$device" = /dev/ublkb0 ] && [ -b "$device" ] || stop "attached as '$device'"
[ "$(readlink /run/state/run/disk/pool/vm)" = "$device" ] || stop "the name that stays leads elsewhere"
[ "$(terrace attach pool/vm)" = "$device" ] && [ "$(terrace attach pool/vm --via ublk)" = "$device" ] || stop "attached twice"
terrace attach pool/vm --via loop 2>/tmp/error && stop "attached in two ways"
queue=/sys/block/ublkb0/queue
[ "$(cat $queue/logical_block_size) $(cat $queue/write_cache) $(cat $queue/fua) $(cat $queue/max_hw_sectors_kb)" = "4096 write back 1 256" ] ||
    stop "$(cat $queue/logical_block_size $queue/write_cache $queue/fua $queue/max_hw_sectors_kb)"
[ "$(size_of $device)" = $((64 << 20)) ] || stop "it is $(size_of $device) bytes long"
ok "attached as $device"

mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $device && mount -t ext4 -o discard $device /mnt || stop "no filesystem"
make_files a && umount /mnt && mount -t ext4 -o discard $device /mnt && same || stop "what was written reads differently"
until_so 60 flushed || stop "nothing is flushed"
terrace detach pool/vm 2>/tmp/error && stop "detached while it was mounted"
grep -q "mounted on '/mnt'" /tmp/error || stop "$(cat /tmp/error)"
answer=$(terrace volume resize pool/vm 80M) || stop "the new size of a device in use"
case $(uname -r | awk -F'[.-]' '{ print ($1 > 6 || $1 == 6 && $2 >= 16) }') in
1)
    [ "$(size_of $device)" = $((80 << 20)) ] || stop "in use it is $(size_of $device) bytes long: $answer"
    same && make_files d || stop "a mounted filesystem after a new size"
    ok "a new size in use"
    ;;
*) echo "$answer" | grep -q "$device is in use and shows the new size" || stop "the new size of a device in use: $answer" ;;
esac
umount /mnt
terrace volume resize pool/vm 96M && [ "$(size_of /dev/ublkb0)" = $((96 << 20)) ] || stop "the new size"
ok "a filesystem, and new sizes"

before=$(referenced)
blkdiscard -o $((80 << 20)) -l $((1 << 20)) $device && dd if=/dev/urandom of=$device bs=1M seek=90 count=4 oflag=direct conv=fsync 2>/dev/null
[ "$(referenced)" -ge $((before + (4 << 20))) ] || stop "4 MiB were written: $before, then $(referenced)"
blkdiscard -o $((90 << 20)) -l $((4 << 20)) $device && sync && dd if=/dev/zero of=$device bs=4k count=1 seek=$((95 << 8)) conv=fsync 2>/dev/null
[ "$(referenced)" -lt $((before + (1 << 20))) ] || stop "discard frees nothing: $before, then $(referenced)"
[ "$(dd if=$device bs=1M skip=90 count=4 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || stop "what was discarded is still there"
terrace snapshot pool/vm@one && past=$(terrace attach pool/vm@one) && [ "$(cat /sys/block/${past##*/}/ro)" = 1 ] || stop "a snapshot"
mount -t ext4 -o ro,noload $past /mnt && same && umount /mnt || stop "the snapshot shows something else"
terrace detach $past || stop "detach the snapshot"
terrace volume create pool/small --size 8M --block-size 512 && small=$(terrace attach pool/small) || stop "a volume with blocks of 512 bytes"
dd if=/dev/urandom of=/tmp/odd bs=512 count=3 2>/dev/null; dd if=/tmp/odd of=$small bs=512 seek=5 oflag=direct conv=fsync 2>/dev/null
[ "$(cat /sys/block/${small##*/}/queue/logical_block_size)" = 512 ] && dd if=$small bs=512 skip=5 count=3 iflag=direct 2>/dev/null | cmp - /tmp/odd ||
    stop "blocks of 512 bytes"
terrace detach /run/state/run/disk/pool/small && small=$(terrace attach pool/small --ro) || stop "detach by the name that stays"
dd if=/tmp/odd of=$small bs=512 count=1 oflag=direct 2>/dev/null && stop "a device for reading was written"
terrace detach $small && terrace destroy pool/small --yes || stop "destroy"
ok "discard frees, a snapshot is read, blocks of 512 bytes"

# Killed while all is flushed: who uses the device notices a pause.
mount -t ext4 $device /mnt && make_files b && sync || stop mount
until_so 60 flushed || stop "nothing is flushed"
sleep 1000 >/mnt/held & held=$!
until_so 60 flushed
kill_daemon
dd if=/dev/urandom of=/mnt/c1 bs=64k count=16 conv=fsync 2>/tmp/writer & writer=$!
terrace start pool || stop start
wait $writer || stop "a writer that waited: $(cat /tmp/writer)"
(cd /mnt && sha256sum c1 >>/tmp/sums)
grep -q "goes on as $device" $LOG || stop "the device does not go on"
same && [ -d /proc/$held ] || stop "a mounted filesystem after kill -9"
kill $held; wait $held 2>/dev/null
[ "$(terrace attach pool/vm)" = $device ] || stop "attached otherwise"
umount /mnt && e2fsck -fn $device >/tmp/error 2>&1 || stop "$(cat /tmp/error)"
dmesg | grep -iE 'I/O error|EXT4-fs error' && stop "the kernel saw errors"
ok "a mounted filesystem goes on after kill -9"

# Killed under a writer that flushes nothing: it gets an error, and what was flushed is there.
dd if=/dev/urandom of=/tmp/flushed bs=64k count=16 2>/dev/null
dd if=/tmp/flushed of=$device bs=64k seek=$((90 << 4)) oflag=direct conv=fsync 2>/dev/null || stop "write"
write_on
until_so 60 unflushed || stop "the writer writes nothing"
kill_daemon
terrace start pool || stop start
until_so 60 test -e /tmp/noticed || stop "a writer did not notice that writes are lost"
grep -q "$device does not go on" $LOG || stop "the device goes on"
device=$(readlink /run/state/run/disk/pool/vm) && [ -b "$device" ] || stop "no device came back"
dd if=$device bs=64k skip=$((90 << 4)) count=16 2>/dev/null | cmp - /tmp/flushed || stop "what was flushed is gone"
mount -t ext4 $device /mnt && same && umount /mnt || stop "the filesystem after kill -9"
ok "after kill -9 under load $device shows what was flushed"

# With durability=sync there is nothing to lose: a writer goes on.
terrace set durability=sync pool/vm && until_so 60 flushed || stop "durability=sync"
dd if=/tmp/flushed of=$device bs=4k seek=$((80 << 8)) oflag=direct 2>/tmp/writer & writer=$!
until_so 60 test "$(awk '{ print $5 }' /sys/block/${device##*/}/stat)" -gt 0
kill_daemon
terrace start pool || stop start
wait $writer || stop "a writer with durability=sync: $(cat /tmp/writer)"
dd if=$device bs=4k skip=$((80 << 8)) count=256 2>/dev/null | cmp - /tmp/flushed || stop "durability=sync lost something"
terrace set durability=barrier pool/vm
ok "with durability=sync a writer goes on after kill -9"

# Told to end, it takes its devices along, and the next one makes them again.
pid=$(daemon) && kill -TERM "$pid" && until_so 60 test ! -d "/proc/$pid" && no_device || stop "a device is left by SIGTERM"
terrace start pool && device=$(readlink /run/state/run/disk/pool/vm) && [ -b "$device" ] || stop "no device came back after SIGTERM"
mount -t ext4 $device /mnt && same && umount /mnt || stop "the filesystem after SIGTERM"
ok "after SIGTERM $device is made again"

# Detached under load, and the daemon stopped.
write_on
until_so 60 unflushed || stop "the writer writes nothing"
terrace detach pool/vm 2>/dev/null && stop "detached under a writer"
terrace detach --force pool/vm || stop "detach --force"
until_so 60 test -e /tmp/noticed || stop "a writer did not notice that its device is gone"
until_so 60 no_device || stop "a device is left"
[ ! -e $MARK ] && [ ! -e /run/state/run/disk/pool ] || stop "something is left in the run directory"
device=$(terrace attach pool/vm) && terrace stop pool && until_so 60 no_device || stop "a device is left by stop"
terrace start pool && no_device || stop "stop forgets what is attached"
device=$(terrace attach pool/vm) && kill_daemon && [ -b $device ] && terrace stop pool && until_so 60 no_device || stop "a device is left by a dead daemon"
grep -qs ublk /proc/mounts && stop "a mount is left"
terrace start pool || stop start
ok "nothing is left"

# One read at a time: IOPS, of which only how the two compare means anything here, and switches of threads for each read.
measure() {
    local target switches
    target=$(terrace attach pool/vm --via "$1") || stop "attach --via $1"
    case $target in /dev/$2*) ;; *) stop "--via $1 made $target" ;; esac
    if command -v fio >/dev/null; then
        dd if=$target of=/dev/null bs=1M 2>/dev/null
        switches=$(awk '$1 == "ctxt" { print $2 }' /proc/stat)
        fio --name=j --ioengine=psync --direct=1 --bs=4k --rw=randread --filename=$target --size=64M --number_ios=3000 --output-format=terse \
            --terse-version=3 >/tmp/fio 2>/dev/null
        switches=$(($(awk '$1 == "ctxt" { print $2 }' /proc/stat) - switches))
        awk -F';' -v name="$1" -v switches=$switches 'NF > 40 { print "GUEST-IOPS", name, $8, switches / 3000 }' /tmp/fio
    fi
    terrace detach $target || stop "detach --via $1"
}
for round in 1 2; do measure ublk ublkb && measure loop loop || stop measure; done
terrace stop pool && no_device || stop "a device is left in the end"
terrace scrub pool --wait >/dev/null 2>&1
echo GUEST-OK
poweroff -f
INIT
guest_pack

CONSOLE=${TERRACE_GUEST_CONSOLE:-$SCRATCH/console}
guest_start '' -accel tcg -cpu max -machine q35 -smp 2 -m 1536
content=no
guest_wait 1800 && content=yes
grep -aE 'GUEST-(STEP|IOPS|FAILED)' "$CONSOLE" | tr -d '\r' | sed 's/^/  /'
[ $content = yes ] && passed 1 && exit
guest_complaint
failed 1 "the guest with ublk"
exit 1
