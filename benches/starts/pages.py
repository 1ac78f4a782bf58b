"""Pages of files in the page cache: how many there are, and how to have none."""

import ctypes
import os
import pathlib

# The number of cachestat(2) on all architectures; Linux 6.5 and later.
CACHESTAT = 451
PAGE = os.sysconf("SC_PAGE_SIZE")
LIBC = ctypes.CDLL(None, use_errno=True)


def cached(path):
    """Bytes of a file, or of a block device, that are in the page cache. Reads nothing."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        if LIBC.syscall(CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(counts), 0) != 0:
            raise OSError(ctypes.get_errno(), "cachestat")
        return counts[0] * PAGE
    finally:
        os.close(descriptor)


def files(directory):
    """The regular files of a tree, those of one file system only."""
    device = os.lstat(directory).st_dev
    for place, names, found in os.walk(directory):
        names[:] = [name for name in names if os.lstat(os.path.join(place, name)).st_dev == device]
        for name in found:
            path = pathlib.Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path


def cached_below(directory):
    """Bytes of the page cache that the files of a tree take, each file once."""
    seen, total = set(), 0
    for path in files(directory):
        found = path.stat()
        if found.st_size and found.st_ino not in seen:
            seen.add(found.st_ino)
            total += cached(path)
    return total


def forget(directory):
    """Leaves nothing of a tree's files in the page cache."""
    for path in files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
