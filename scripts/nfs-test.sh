#!/usr/bin/env bash
# NFS over a mount: nfs-ganesha serves it by file handles, and a client uses them while the kernel forgets what they name,
# the mount goes and comes back, and the daemon is killed. Each case is a function `case_NAME`.
#   scripts/nfs-test.sh TERRACE-BINARY [CASE…]
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
. scripts/scratch-pool.sh
. scripts/cases.sh
scratch_begin "$1"
shift
CASES=(files_are_served caches_are_dropped past_states_are_served daemon_is_killed)
PORT=$((20000 + $$ % 20000))
URL="nfs://127.0.0.1/share"
VERSION="nfsport=$PORT&mountport=$PORT&version=4"

ganesha_start() {
    mkdir -p "$SCRATCH/ganesha/recovery"
    cat >"$SCRATCH/ganesha/conf" <<CONF
NFS_CORE_PARAM { Protocols = 4; NFS_Port = $PORT; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
    Plugins_Dir = $PLUGINS; allow_set_io_flusher_fail = true; }
NFSv4 { Grace_Period = 2; Lease_Lifetime = 5; RecoveryRoot = $SCRATCH/ganesha/recovery; }
EXPORT_DEFAULTS { Access_Type = RW; Squash = No_Root_Squash; SecType = sys; }
EXPORT { Export_Id = 1; Path = $MOUNT; Pseudo = /share; Protocols = 4; Filesystem_Id = 7.1; FSAL { Name = VFS; } }
LOG { Default_Log_Level = EVENT; }
CONF
    ganesha.nfsd -F -L "$SCRATCH/ganesha/log" -f "$SCRATCH/ganesha/conf" -p "$SCRATCH/ganesha/pid" >/dev/null 2>&1 &
    # Cases run in shells of their own.
    echo $! >"$SCRATCH/ganesha/started"
    local i
    echo served >"$MOUNT/.served"
    for i in $(seq 1 300); do
        # Files are opened when the time has passed in which clients of before may come back.
        [ "$(nfs-cat "$URL/.served?$VERSION" 2>/dev/null)" = served ] && return 0
        kill -0 "$(cat "$SCRATCH/ganesha/started")" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 5 "$SCRATCH/ganesha/log"
    return 1
}

ganesha_end() {
    local process
    process=$(cat "$SCRATCH/ganesha/started" 2>/dev/null) || return 0
    kill "$process" 2>/dev/null
    while kill -0 "$process" 2>/dev/null && [ "$(sed 's/.*) \(.\).*/\1/' "/proc/$process/stat" 2>/dev/null)" != Z ]; do sleep 0.05; done
    rm -f "$SCRATCH/ganesha/started"
}

drop() { echo 2 >/proc/sys/vm/drop_caches; }
same() { [ "$1" = "$2" ] || { echo "'$1' instead of '$2'"; return 1; }; }
names() { nfs-ls "$URL/$1?$VERSION" | awk '{ print $NF }' | LC_ALL=C sort | tr '\n' ' '; }

case_files_are_served() {
    head -c 3000000 /dev/urandom >"$SCRATCH/blob" && mkdir -p "$MOUNT/a/b/c" && cp "$SCRATCH/blob" "$MOUNT/a/b/c/blob" || return 1
    # Not longer: nfs-cp of libnfs 4 fails then, over any filesystem.
    head -c 1000 "$SCRATCH/blob" >"$SCRATCH/small"
    nfs-cat "$URL/a/b/c/blob?$VERSION" | cmp - "$SCRATCH/blob" && nfs-cp "$SCRATCH/small" "$URL/a/copy?$VERSION" >/dev/null &&
        cmp "$MOUNT/a/copy" "$SCRATCH/small" && same "$(names a)" "b copy "
}

# The server has handles of what it was asked for before; and one client keeps files open.
case_caches_are_dropped() {
    mkdir -p "$MOUNT/deep/er/tree" && seq 1 200000 >"$MOUNT/deep/er/tree/lines" && echo gone >"$MOUNT/deep/gone" || return 1
    local i
    for i in 1 2 3; do
        nfs-cat "$URL/deep/er/tree/lines?$VERSION" | cmp - "$MOUNT/deep/er/tree/lines" && same "$(names deep/er/tree)" "lines " && drop || return 1
    done
    python3 scripts/nfs-client.py "$PORT" /share deep/er/tree/lines deep/gone "$MOUNT"
}

case_past_states_are_served() {
    mkdir -p "$MOUNT/past/in" && echo old >"$MOUNT/past/in/file" && "$TERRACE" snapshot "$POOL/data@before" && echo new >"$MOUNT/past/in/file" || return 1
    local path=.terrace/snapshots/before/past/in i
    for i in 1 2 3; do
        same "$(nfs-cat "$URL/$path/file?$VERSION")" old && same "$(names "$path")" "file " && drop || return 1
    done
    same "$(nfs-cat "$URL/past/in/file?$VERSION")" new
}

case_daemon_is_killed() {
    echo kept | dd of="$MOUNT/kept" conv=fsync status=none || return 1
    same "$(nfs-cat "$URL/kept?$VERSION")" kept && ganesha_end && kill_daemon && timeout 60 "$TERRACE" start "$POOL" && ganesha_start &&
        same "$(nfs-cat "$URL/kept?$VERSION")" kept
}

trap 'ganesha_end; scratch_end' EXIT
PLUGINS=$(dirname "$(find /usr/lib /usr/lib64 -name 'libfsalvfs.so' 2>/dev/null | head -n 1)")
reason=
for program in ganesha.nfsd nfs-ls nfs-cat nfs-cp python3; do
    command -v "$program" >/dev/null || reason="no $program (Debian: nfs-ganesha nfs-ganesha-vfs libnfs-utils)"
done
[ -n "$reason" ] || [ -f "$PLUGINS/libfsalvfs.so" ] || reason="no FSAL_VFS (Debian: nfs-ganesha-vfs)"
if [ -n "$reason" ]; then
    skipped ${#CASES[@]} "nfs: $reason"
    exit 0
fi
if ! scratch_pool 512M 1G; then
    failed 1 "no pool, filesystem and mount could be made"
    exit 1
fi
if ! ganesha_start; then
    skipped ${#CASES[@]} "nfs: nfs-ganesha does not start here"
    exit 0
fi
[ $# -eq 0 ] && set -- "${CASES[@]}"
run_cases "$@"
