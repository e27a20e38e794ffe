# shellcheck shell=bash
# A virtual machine (qemu, x86_64) that runs a script of ours on a kernel of Debian, with programs and modules put into
# its initramfs: sourced, not run. Needs SCRATCH, a directory that the caller takes away again, with guest_kill before.
#   guest_tools TOOL… && guest_kernel CHOICE FETCH MODULE && guest_root MODULE… && guest_program PATH NAME …,
#   then the caller's script as $ROOT/init, guest_pack, and guest_start.
# Functions that fail say why in $REASON, for who skips what it cannot do.
PATH=$PATH:/usr/sbin:/sbin
REASON='' KERNEL='' MODULES='' ROOT='' CONSOLE='' guest_pid=''

# Sets BUSYBOX; $1… what else has to be installed.
guest_tools() {
    local tool
    [ "$(uname -m)" = x86_64 ] || { REASON='the guests are x86_64' && return 1; }
    for tool in qemu-system-x86_64 busybox "$@"; do
        command -v "$tool" >/dev/null || { REASON="no $tool" && return 1; }
    done
    BUSYBOX=$(command -v busybox)
    LC_ALL=C ldd "$BUSYBOX" >/dev/null 2>&1 && REASON='busybox is not static (install busybox-static)' && return 1
    return 0
}

# $1 `small` or `newest`: the name of Debian's package.
guest_package() {
    if [ "$1" = small ]; then
        apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends:/ { print $2; exit }'
    else
        apt-cache search --names-only '^linux-image-[0-9].*-amd64$' | awk '{ print $1 }' | grep -vE 'cloud|rt-|dbg|unsigned|-[0-9.]+-amd64$' | sort -V | tail -n 1
    fi
}
# Sets KERNEL and MODULES: of TERRACE_GUEST_KERNEL and TERRACE_GUEST_MODULES, TERRACE_GUEST_PACKAGE (a linux-image-*.deb, or the
# several that newer ones are split into), with $2 `--fetch` Debian's package for $1, or else /boot. $3: a module that it has to have, or nothing.
guest_kernel() {
    local packages=${TERRACE_GUEST_PACKAGE:-} package name unpacked=''
    KERNEL=${TERRACE_GUEST_KERNEL:-} MODULES=${TERRACE_GUEST_MODULES:-}
    [ -n "$KERNEL" ] && return
    if [ -z "$packages" ] && [ "$2" = --fetch ] && command -v apt-get >/dev/null; then
        name=$(guest_package "$1")
        echo "downloading ${name:-linux-image-amd64}" >&2
        (cd "$SCRATCH" && apt-get download -qq "${name:-linux-image-amd64}" >/dev/null 2>&1)
        packages=$(find "$SCRATCH" -maxdepth 1 -name 'linux-image-*.deb' | head -n 1)
    fi
    for package in $packages; do
        unpacked=$SCRATCH/kernel
        dpkg-deb -x "$package" "$unpacked" || { REASON="'$package' is no package" && return 1; }
    done
    # Newer packages keep everything below /usr/lib/modules.
    while read -r name; do
        case $name in
        */modules/*) MODULES=${name%/*} ;;
        *) MODULES=$unpacked/lib/modules/${name##*/vmlinuz-} ;;
        esac
        if [ -r "$name" ] && [ -d "$MODULES" ] && { [ -z "$3" ] || [ -n "$(guest_module_file "$3")" ]; }; then KERNEL=$name && return; fi
    done < <(find "$unpacked/boot" "$unpacked/usr/lib/modules" -maxdepth 2 -name 'vmlinuz*' 2>/dev/null | sort -rV)
    # shellcheck disable=SC2034
    REASON="no kernel${3:+ with $3}: TERRACE_GUEST_PACKAGE and TERRACE_GUEST_KERNEL name none, and none was downloaded"
    return 1
}

guest_module_file() { find "$MODULES" \( -name "${1//[-_]/[-_]}.ko" -o -name "${1//[-_]/[-_]}.ko.*" \) | head -n 1; }
# $1 module, with its options: it and those that it depends on, in the order in which they go in. What is built in has no file.
guest_module() {
    local found name dependency
    found=$(guest_module_file "${1%% *}")
    [ -n "$found" ] || return 0
    name=$(basename "${found%.ko*}")
    grep -qx "$name" "$ROOT/modules/order" && return
    case "$found" in
    *.xz) xz -dc "$found" ;;
    *.zst) zstd -qdc "$found" ;;
    *) cat "$found" ;;
    esac >"$ROOT/modules/$name.ko"
    for dependency in $(tr '\0' '\n' <"$ROOT/modules/$name.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do guest_module "$dependency"; done
    echo "$name${1#"${1%% *}"}" >>"$ROOT/modules/order"
}
# $1 program, $2 its name there
guest_program() {
    local library
    cp -L "$1" "$ROOT/bin/$2"
    for library in $(LC_ALL=C ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do (cd / && cp -Ln --parents "$library" "$ROOT"); done
}
# Makes $ROOT with busybox and the modules $1…. The caller's $ROOT/init is a script of `#!/bin/busybox sh` that begins with `. /begin`:
# that mounts what a system has and loads the modules; `end WHAT…` says it as GUEST-WHAT and turns the machine off.
guest_root() {
    local module
    ROOT=$SCRATCH/initramfs
    mkdir -p "$ROOT"/{bin,dev,proc,sys,run,tmp,etc,mnt,modules} && : >"$ROOT/modules/order" || return 1
    cp "$BUSYBOX" "$ROOT/bin/busybox"
    for module in "$@"; do guest_module "$module"; done
    echo 'root:x:0:0::/:/bin/sh' >"$ROOT/etc/passwd"
    cat >"$ROOT/begin" <<'BEGIN'
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox mkdir -p /usr/bin /usr/sbin /sbin
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
end() { echo "GUEST-$*"; poweroff -f; }
echo GUEST-UP
while read -r module options; do insmod "/modules/$module.ko" $options || end "FAILED insmod $module"; done </modules/order
# $1 seconds, rest: until it is so.
until_so() {
    local left=$(($1 * 10))
    shift
    until "$@"; do [ $((left -= 1)) -gt 0 ] || return 1; usleep 100000; done
}
BEGIN
}
# Packs $ROOT and takes it away.
guest_pack() {
    chmod +x "$ROOT/init"
    (cd "$ROOT" && find . | "$BUSYBOX" cpio -o -H newc 2>/dev/null) >"$SCRATCH/initramfs.cpio" && rm -rf "$ROOT"
}

# Starts a guest in the background, its console in the file $CONSOLE. $1 words for its kernel's command line, rest: arguments of qemu. On
# a loaded machine an emulated timer comes too late for the kernel's check of it, hence no_timer_check.
guest_start() {
    local words=$1
    shift
    : >"$CONSOLE"
    qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -serial "file:$CONSOLE" -kernel "$KERNEL" \
        -initrd "$SCRATCH/initramfs.cpio" -append "console=ttyS0 quiet panic=-1 no_timer_check $words" "$@" >"$CONSOLE.qemu" 2>&1 &
    guest_pid=$!
    disown "$guest_pid"
}
guest_runs() { [ -n "$guest_pid" ] && kill -0 "$guest_pid" 2>/dev/null; }
guest_kill() {
    [ -n "$guest_pid" ] && while kill -9 "$guest_pid" 2>/dev/null; do sleep 0.1; done
    guest_pid=''
}
# $1 most seconds: waits until it ends; whether it said GUEST-OK.
guest_wait() {
    local waited=0
    while guest_runs && [ $((waited += 1)) -le "$1" ]; do sleep 1; done
    guest_kill
    grep -aq GUEST-OK "$CONSOLE"
}
# What a guest said last, and qemu.
guest_complaint() { tail -n "${1:-60}" "$CONSOLE" | tr -d '\r'; cat "$CONSOLE.qemu"; }
