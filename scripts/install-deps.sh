#!/usr/bin/env bash
# Installs, by name, what is missing for building, testing and trying Terrace on Debian or Ubuntu; changes nothing that
# is there. Downloads are retried, since mirrors are not ours; what cannot be had is said and the stages that need it
# are skipped by scripts/test.sh with that reason.
#
#   scripts/install-deps.sh [build|test|demo|bench|bench-peers]...     default: build test
set -uo pipefail
cd "$(dirname "$0")/.."
log() { printf 'install-deps: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"
    else return 1
    fi
}

# $1 command that shows it is there, $2 package
want_packages=()
need() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || want_packages+=("$2"); }

apt_install() {
    [ ${#want_packages[@]} -eq 0 ] && return 0
    if ! command -v apt-get >/dev/null; then
        log "no apt-get here; please install: ${want_packages[*]}"
        return 0
    fi
    log "installing ${want_packages[*]}"
    local attempt
    for attempt in 1 2 3; do
        if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${want_packages[@]}" >/tmp/terrace-apt.log 2>&1; then
            return 0
        fi
        log "apt-get attempt $attempt failed: $(tail -n 1 /tmp/terrace-apt.log 2>/dev/null)"
        sleep $((attempt * 2))
        as_root timeout 120 apt-get update -qq >/dev/null 2>&1
    done
    # One at a time, so that a single missing package does not take the others with it.
    local package
    for package in "${want_packages[@]}"; do
        as_root env DEBIAN_FRONTEND=noninteractive timeout 180 apt-get install -y -qq --no-install-recommends \
            "$package" >/dev/null 2>&1 || log "could not install $package"
    done
}

# $1 crate, $2 version
cargo_tool() {
    command -v "$1" >/dev/null 2>&1 && return 0
    [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/$1" ] && return 0
    local attempt
    for attempt in 1 2; do
        log "cargo install $1 $2 (attempt $attempt)"
        # Unoptimised: it runs for seconds, and compiling it optimised takes minutes.
        if CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_TARGET_DIR="${TMPDIR:-/tmp}/terrace-tools" \
            timeout 420 cargo install "$1" --version "$2" --locked --quiet >/tmp/terrace-cargo-install.log 2>&1; then
            return 0
        fi
        log "$(tail -n 1 /tmp/terrace-cargo-install.log 2>/dev/null)"
    done
    log "could not install $1"
}

[ $# -eq 0 ] && set -- build test
for what in "$@"; do
    case "$what" in
    build)
        # The zstd and lz4 crates compile C.
        need cc gcc
        need make make
        need git git
        ;;
    demo)
        need fusermount3 fuse3
        need rsync rsync
        ;;
    test)
        need fusermount3 fuse3
        need rsync rsync
        need setfattr attr
        need setfacl acl
        need sqlite3 sqlite3
        need git git
        need mkfs.ext4 e2fsprogs
        need mkfs.xfs xfsprogs
        need fio fio
        need qemu-img qemu-utils
        need nbdcopy libnbd-bin
        need openssl openssl
        need python3 python3
        # Where a package starts its service at once, an NFS server of the machine's would be too much for a test.
        if [ ! -d /run/systemd/system ]; then
            need ganesha.nfsd nfs-ganesha
            need ganesha.nfsd nfs-ganesha-vfs
            need nfs-cat libnfs-utils
        fi
        ;;
    bench)
        need fusermount3 fuse3
        need fio fio
        need rsync rsync
        need mkfs.ext4 e2fsprogs
        need mkfs.btrfs btrfs-progs
        need mkfs.xfs xfsprogs
        ;;
    bench-peers)
        need fio fio
        need qemu-system-x86_64 qemu-system-x86
        need busybox busybox-static
        need dmsetup dmsetup
        need make-bcache bcache-tools
        need strip binutils
        ;;
    *)
        log "unknown set '$what'; there are build, test, demo, bench, bench-peers"
        exit 2
        ;;
    esac
done
apt_install
if ! command -v cargo >/dev/null; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        log "add $HOME/.cargo/bin to PATH"
    else
        log "no cargo: install the stable Rust toolchain first (rustup), then run this again"
        exit 1
    fi
fi
case " $* " in
*" test "*)
    cargo_tool pjdfstest 0.2.2
    cargo_tool cargo-deny 0.20.2
    ;;
esac
exit 0
