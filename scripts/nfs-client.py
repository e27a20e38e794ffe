#!/usr/bin/env python3
"""An NFS 4 client that keeps what it opened (libnfs), while the server's machine forgets what it had cached.

nfs-client.py PORT EXPORT LINES GONE MOUNT: LINES is a file of many numbered lines and GONE one to be removed, as paths below the
export and below MOUNT, where the same files are seen directly.
"""
import ctypes
import ctypes.util
import os
import sys

port, export, lines, gone, mount = sys.argv[1:]
name = ctypes.util.find_library("nfs") or "libnfs.so.13"
nfs = ctypes.CDLL(name)
pointer = ctypes.c_void_p
nfs.nfs_init_context.restype = pointer
nfs.nfs_get_error.restype = ctypes.c_char_p
nfs.nfs_get_error.argtypes = [pointer]


class Url(ctypes.Structure):
    """What `struct nfs_url` begins with."""

    _fields_ = [("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p)]


nfs.nfs_parse_url_dir.restype = ctypes.POINTER(Url)
nfs.nfs_parse_url_dir.argtypes = [pointer, ctypes.c_char_p]
nfs.nfs_mount.argtypes = [pointer, ctypes.c_char_p, ctypes.c_char_p]
nfs.nfs_open.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(pointer)]
nfs.nfs_pread.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, pointer]
nfs.nfs_close.argtypes = [pointer, pointer]
context = nfs.nfs_init_context()


def check(result, what):
    if result < 0:
        sys.exit(f"{what}: {result} {nfs.nfs_get_error(context)}")
    return result


def forget():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


def opened(path):
    handle = pointer()
    check(nfs.nfs_open(context, path.encode(), os.O_RDONLY, ctypes.byref(handle)), f"open {path}")
    return handle


def read(handle, offset, count):
    content = b""
    while len(content) < count:
        buffer = ctypes.create_string_buffer(count - len(content))
        at = offset + len(content)
        got = check(nfs.nfs_pread(context, handle, at, len(buffer), buffer), f"read at {at}")
        if got == 0:
            break
        content += buffer.raw[:got]
    return content


# The port and the version come with the address.
address = f"nfs://127.0.0.1{export}?nfsport={port}&mountport={port}&version=4"
url = nfs.nfs_parse_url_dir(context, address.encode())
if not url:
    sys.exit(f"{address}: {nfs.nfs_get_error(context)}")
check(nfs.nfs_mount(context, url.contents.server, url.contents.path), "mount")
with open(os.path.join(mount, lines), "rb") as file:
    content = file.read()
handle = opened("/" + lines)
for offset in range(0, len(content), 100_000):
    forget()
    if read(handle, offset, 100_000) != content[offset : offset + 100_000]:
        sys.exit(f"other content at {offset}")
# Removed and made again: another file, never taken for the one that was opened.
other = opened("/" + gone)
os.remove(os.path.join(mount, gone))
with open(os.path.join(mount, gone), "w") as file:
    file.write("another\n")
forget()
buffer = ctypes.create_string_buffer(100)
count = nfs.nfs_pread(context, other, 0, 100, buffer)
if count > 0 and buffer.raw[:count] != b"gone\n":
    sys.exit(f"another file was read: {buffer.raw[:count]}")
print("served by handles")
