/* Loaded with LD_PRELOAD: from the Nth call on a path below a folder, the system refuses.

   fault_arm(folder, calls, first, lasting, error): `calls` is a sum of the bits below. The `first`-th of these calls
   (from 1) fails with `error`; if `lasting`, so do all later ones. fault_count() is the number of calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, OPEN_TO_WRITE = 2, OPEN_TO_READ = 4, NAME = 8, REMOVE = 16, SYNC = 32 };

static char folder[PATH_MAX];
static size_t length;
static int armed, calls, first, lasting, error_number;
static atomic_int count;

void fault_arm(const char *path, int which, int at, int lasts, int error) {
    strncpy(folder, path, sizeof folder - 1);
    length = strlen(folder);
    calls = which, first = at, lasting = lasts, error_number = error;
    atomic_store(&count, 0);
    armed = 1;
}

int fault_count(void) { return atomic_load(&count); }

static int below(const char *path) { return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]); }

static int is_refused(int kind, int is_below) {
    if (!armed || !(calls & kind) || !is_below) return 0;
    int number = atomic_fetch_add(&count, 1) + 1;
    if (number != first && !(lasting && number > first)) return 0;
    errno = error_number;
    return 1;
}

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

static int path_below(int at, const char *path) {
    if (path[0] == '/') return below(path);
    if (at != AT_FDCWD) return fd_below(at);
    char here[PATH_MAX];
    return getcwd(here, sizeof here) && below(here);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int open_kind(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC) ? OPEN_TO_WRITE : OPEN_TO_READ;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        MODE(flags) \
        return armed && is_refused(open_kind(flags), path_below(AT_FDCWD, path)) ? -1 : real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(name); \
        MODE(flags) \
        return armed && is_refused(open_kind(flags), path_below(at, path)) ? -1 : real(at, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define ON_FD(type, name, kind, parameters, arguments) \
    type name parameters { \
        REAL(name); \
        return armed && is_refused(kind, fd_below(fd)) ? -1 : real arguments; \
    }
ON_FD(ssize_t, write, WRITE, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, pwrite, WRITE, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD(ssize_t, pwrite64, WRITE, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FD(ssize_t, writev, WRITE, (int fd, const struct iovec *parts, int number), (fd, parts, number))
ON_FD(int, ftruncate, WRITE, (int fd, off_t size), (fd, size))
ON_FD(int, ftruncate64, WRITE, (int fd, off64_t size), (fd, size))
ON_FD(int, fsync, SYNC, (int fd), (fd))
ON_FD(int, fdatasync, SYNC, (int fd), (fd))

ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) {
    static ssize_t (*real)(int, int, off64_t *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "sendfile64");
    return armed && is_refused(WRITE, fd_below(fd)) ? -1 : real(fd, from, at, size);
}
ssize_t sendfile(int fd, int from, off_t *at, size_t size) { return sendfile64(fd, from, at, size); }

#define ON_PATH(name, kind, parameters, arguments, at, path) \
    int name parameters { \
        REAL(name); \
        return armed && is_refused(kind, path_below(at, path)) ? -1 : real arguments; \
    }
ON_PATH(truncate, WRITE, (const char *path, off_t size), (path, size), AT_FDCWD, path)
ON_PATH(truncate64, WRITE, (const char *path, off64_t size), (path, size), AT_FDCWD, path)
ON_PATH(mkdir, NAME, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
ON_PATH(mkdirat, NAME, (int at, const char *path, mode_t mode), (at, path, mode), at, path)
ON_PATH(rename, NAME, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(renameat, NAME, (int a, const char *from, int at, const char *to), (a, from, at, to), at, to)
ON_PATH(renameat2, NAME, (int a, const char *from, int at, const char *to, unsigned f), (a, from, at, to, f), at, to)
ON_PATH(link, NAME, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(linkat, NAME, (int a, const char *from, int at, const char *to, int f), (a, from, at, to, f), at, to)
ON_PATH(unlink, REMOVE, (const char *path), (path), AT_FDCWD, path)
ON_PATH(unlinkat, REMOVE, (int at, const char *path, int flags), (at, path, flags), at, path)
ON_PATH(rmdir, REMOVE, (const char *path), (path), AT_FDCWD, path)
