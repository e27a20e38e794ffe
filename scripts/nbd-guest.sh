#!/usr/bin/env bash
# Attaches volumes with the kernel's own NBD client (nbd-client and nbd.ko) in a virtual machine (qemu, emulated), over a Unix
# socket, TCP and TLS, by two connections: a filesystem, flush, FUA and discard, new sizes, snapshots, detaching under load, and the
# daemon killed with -9 under a writer.
#   scripts/nbd-guest.sh TERRACE-BINARY [--fetch]
# The kernel is found as for scripts/ublk-guest.sh; it has to have nbd. Skipped, with the reason, where qemu, a static busybox,
# nbd-client, mkfs.ext4 or such a kernel is missing; TLS where there is no openssl.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/stage.sh
. scripts/stage.sh
binary=${1:?the terrace binary} fetch=${2:-}
# shellcheck source=scripts/guest.sh
. scripts/guest.sh
guest_tools mkfs.ext4 e2fsck strip nbd-client || { skipped 1 "nbd guest: $REASON"; exit 0; }
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/terrace-nbd.XXXXXX")
# shellcheck disable=SC2317
cleanup() {
    guest_kill
    rm -rf "$SCRATCH"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
guest_kernel newest "$fetch" nbd || { skipped 1 "nbd guest: $REASON"; exit 0; }

guest_root crc32c_generic crc32c_cryptoapi libcrc32c crc16 'nbd nbds_max=4' fuse ext4 || exit 1
guest_program "$binary" terrace
strip "$ROOT/bin/terrace"
for program in mkfs.ext4 e2fsck nbd-client; do guest_program "$(command -v $program)" $program; done
if command -v openssl >/dev/null; then
    mkdir "$ROOT/tls"
    (
        cd "$ROOT/tls" || exit 1
        # Valid whatever the guest's clock says.
        new=(openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
        "${new[@]}" -x509 -days 36500 -subj /CN=authority -keyout ca.key -out ca.pem &&
            for who in server client; do
                "${new[@]}" -subj "/CN=$who" -keyout $who.key -out $who.csr &&
                    openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -out $who.pem \
                        -extfile <(echo 'subjectAltName=DNS:localhost,IP:127.0.0.1')
            done
    ) >"$SCRATCH/openssl" 2>&1 || { cat "$SCRATCH/openssl"; failed 1 'nbd guest: certificates'; exit 1; }
fi
cat >"$ROOT/init" <<'INIT'
#!/bin/busybox sh
. /begin
mount -t tmpfs -o size=900M tmpfs /run; mount -t tmpfs -o size=64M tmpfs /tmp
mkdir -p /run/state; export TERRACE_STATE_DIR=/run/state XDG_RUNTIME_DIR=/run HOME=/
LOG=/run/state/log/pool.log SOCKET=/run/nbd.sock device=/dev/nbd0
stop() {
    echo "GUEST-FAILED $*"
    tail -n 25 $LOG; dmesg | tail -n 15; cat /tmp/client; ps | grep -v '\[' | tail -n 15
    poweroff -f
}
ok() { echo "GUEST-STEP $* ($(cut -d. -f1 /proc/uptime) s)"; }
ip link set lo up
uname -r; nbd-client --version
daemon() { terrace status pool --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"daemon_pid": *\([0-9]*\).*/\1/p' | head -n 1; }
kill_daemon() { pid=$(daemon); kill -9 "$pid" || stop "kill -9 $pid"; until_so 60 test ! -d "/proc/$pid" || stop "it does not die"; }
referenced() { terrace list -t volume pool/vm --json | tr ',{}' '\n\n\n' | sed -n 's/^ *"referenced_bytes": *\([0-9]*\).*/\1/p'; }
size() { echo $(($(cat /sys/block/nbd0/size) * 512)); }
is_attached() { [ "$(size)" -gt 0 ] && nbd-client -c $device >/dev/null; }
is_detached() { ! nbd-client -c $device >/dev/null; }
# $1 export, rest: options of nbd-client. Blocks of 4 KiB, as the volume says itself.
attach() {
    local export=$1
    shift
    nbd-client -N "$export" -b 4096 "$@" $device >/tmp/client 2>&1 && until_so 60 is_attached
}
detach() { nbd-client -d $device >/tmp/client 2>&1 && until_so 60 is_detached; }
make_files() { for file in 1 2 3 4 5 6; do dd if=/dev/urandom of=/mnt/$1$file bs=64k count=16 2>/dev/null || return 1; done; (cd /mnt && sha256sum $1? >>/tmp/sums); }
same() { echo 3 >/proc/sys/vm/drop_caches; (cd /mnt && sha256sum -c /tmp/sums >/dev/null); }
check() { e2fsck -fn $device >/tmp/error 2>&1 || stop "$1: $(cat /tmp/error)"; }
# Writes without end, each 16 blocks flushed, until there is an error.
write_on() {
    rm -f /tmp/noticed
    (while dd if=/dev/zero of=$device bs=4k count=16 seek=$((80 << 8)) oflag=direct conv=fsync 2>/dev/null; do echo >>/tmp/written; done; touch /tmp/noticed) &
}

terrace pool create pool --tier fast=/run/fast.img:512M -o memory=128M >/dev/null && terrace volume create pool/vm --size 96M --sparse &&
    terrace serve pool/vm --nbd unix:$SOCKET >/dev/null || stop "no volume"
nbd-client -l -unix $SOCKET >/tmp/client 2>&1; grep -q pool/vm /tmp/client || echo "no list of exports over a Unix socket: $(tail -n 1 /tmp/client)"
attach pool/vm -unix $SOCKET -C 2 || stop "attach over a Unix socket"
queue=/sys/block/nbd0/queue
echo "nbd0: $(size) bytes, blocks of $(cat $queue/logical_block_size), $(cat $queue/write_cache), fua $(cat $queue/fua), discards up to $(cat $queue/discard_max_bytes), read-only $(cat /sys/block/nbd0/ro)"
[ "$(size) $(cat $queue/logical_block_size) $(cat $queue/write_cache) $(cat $queue/fua) $(cat /sys/block/nbd0/ro)" = "$((96 << 20)) 4096 write back 1 0" ] ||
    stop "the device is otherwise"
[ "$(cat $queue/discard_max_bytes)" -gt 0 ] || stop "the device does not discard"
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $device $((64 << 10))k && mount -t ext4 $device /mnt || stop "no filesystem"
make_files a && umount /mnt && mount -t ext4 $device /mnt && same || stop "what was written reads differently"
ok "a filesystem by two connections"

dd if=/dev/urandom of=/mnt/big bs=1M count=16 conv=fsync 2>/dev/null && before=$(referenced) && rm /mnt/big && sync && fstrim /mnt || stop fstrim
umount /mnt
[ "$(referenced)" -lt $((before - (12 << 20))) ] || stop "fstrim frees nothing: $before, then $(referenced)"
dd if=/dev/urandom of=$device bs=1M seek=80 count=4 oflag=direct conv=fsync 2>/dev/null && before=$(referenced) && blkdiscard -o $((80 << 20)) -l $((4 << 20)) $device || stop blkdiscard
sync; dd if=/dev/zero of=$device bs=4k count=1 seek=$((95 << 8)) oflag=direct conv=fsync 2>/dev/null
[ "$(referenced)" -lt $((before - (3 << 20))) ] || stop "a discard frees nothing: $before, then $(referenced)"
[ "$(dd if=$device bs=1M skip=80 count=4 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || stop "what was discarded is still there"
ok "fstrim and discards free"

terrace volume resize pool/vm 128M >/dev/null || stop resize
echo "in use the client shows $(size) bytes of $((128 << 20))"
[ "$(size)" = $((96 << 20)) ] || [ "$(size)" = $((128 << 20)) ] || stop "it is $(size) bytes long"
detach || stop detach
attach pool/vm -unix $SOCKET -C 2 && [ "$(size)" = $((128 << 20)) ] || stop "attached again it is $(size) bytes long"
mount -t ext4 $device /mnt && same && umount /mnt || stop "the filesystem after a new size"
ok "a new size when attached again"

# Detached under load.
dd if=/dev/urandom of=/tmp/flushed bs=64k count=16 2>/dev/null
dd if=/tmp/flushed of=$device bs=64k seek=$((90 << 4)) oflag=direct conv=fsync 2>/dev/null || stop write
rm -f /tmp/written; write_on
until_so 120 test -s /tmp/written || stop "the writer writes nothing"
detach || stop "detach under load"
until_so 120 test -e /tmp/noticed || stop "a writer did not notice that its device is gone"
attach pool/vm -unix $SOCKET || stop "attach after a detach under load"
dd if=$device bs=64k skip=$((90 << 4)) count=16 2>/dev/null | cmp - /tmp/flushed || stop "what was flushed is gone"
check "after a detach under load"
detach || stop detach
ok "detached under load by $(wc -l </tmp/written) flushed writes"

# Killed under a writer. The client that is told to comes again by itself; whether the writer gets an error meanwhile is the kernel's choice.
attach pool/vm -unix $SOCKET -persist -nonetlink || stop "attach to stay"
mount -t ext4 $device /mnt && make_files b && sync && same && umount /mnt || stop "the filesystem before kill -9"
rm -f /tmp/written; write_on
until_so 120 test -s /tmp/written || stop "the writer writes nothing"
kill_daemon
terrace start pool || stop start
if until_so 10 is_attached && dd if=$device of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; then again='came again by itself'; else again='was attached again'; fi
[ -e /tmp/noticed ] && again="$again, the writer had an error"
nbd-client -d $device >/dev/null 2>&1
until_so 120 test -e /tmp/noticed || stop "the writer goes on without a device"
until_so 60 is_detached || stop "it is not detached"
attach pool/vm -unix $SOCKET -C 2 || stop "attach after kill -9"
dd if=$device bs=64k skip=$((90 << 4)) count=16 2>/dev/null | cmp - /tmp/flushed || stop "what was flushed is gone"
check "after kill -9"
mount -t ext4 $device /mnt && same && umount /mnt || stop "the filesystem after kill -9"
detach || stop detach
ok "after kill -9 the client $again"

terrace snapshot pool/vm@one && terrace serve pool/vm@one --nbd tcp:127.0.0.1:10810 >/dev/null || stop "serve a snapshot"
attach pool/vm@one 127.0.0.1 10810 || stop "attach a snapshot over TCP"
[ "$(cat /sys/block/nbd0/ro)" = 1 ] || stop "a snapshot can be written"
mount -t ext4 -o ro,noload $device /mnt && same && umount /mnt || stop "the snapshot shows something else"
detach && terrace unserve pool/vm@one >/dev/null || stop "detach a snapshot"
ok "a snapshot over TCP"

terrace unserve pool/vm >/dev/null || stop unserve
if [ -d /tls ]; then
    terrace serve pool/vm --nbd tcp:127.0.0.1:10809 --tls-cert /tls/server.pem --tls-key /tls/server.key --tls-ca /tls/ca.pem >/dev/null || stop "serve with TLS"
    attach pool/vm 127.0.0.1 10809 && stop "attached without TLS"
    is_detached || stop "attached without TLS"
    attach pool/vm 127.0.0.1 10809 -enable-tls -cacertfile /tls/ca.pem -tlshostname localhost && dd if=$device of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null && stop "attached without a certificate"
    nbd-client -d $device >/dev/null 2>&1; until_so 60 is_detached
    attach pool/vm 127.0.0.1 10809 -enable-tls -cacertfile /tls/ca.pem -tlshostname localhost -certfile /tls/client.pem -keyfile /tls/client.key || stop "attach with TLS"
    mount -t ext4 $device /mnt && same && make_files c && umount /mnt && mount -t ext4 $device /mnt && same && umount /mnt || stop "the filesystem over TLS"
    check "over TLS"
    detach || stop "detach with TLS"
    terrace unserve pool/vm >/dev/null || stop unserve
    ok "TLS with certificates of both sides"
fi
dmesg | grep -E 'BUG:|Oops:|blocked for more than' && stop "the kernel complains"
terrace scrub pool --wait >/dev/null || stop scrub
terrace stop pool || stop "stop the pool"
end OK
INIT
guest_pack

CONSOLE=${TERRACE_GUEST_CONSOLE:-$SCRATCH/console}
guest_start '' -accel tcg -cpu max -machine q35 -smp 2 -m 1536
content=no
guest_wait 1200 && content=yes
grep -aE 'GUEST-(STEP|FAILED)|^nbd0:|^in use|^no list' "$CONSOLE" | tr -d '\r' | sed 's/^/  /'
[ $content = yes ] && passed 1 && exit
guest_complaint
failed 1 "the guest with nbd-client"
exit 1
