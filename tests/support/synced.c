/* Preloaded into a server: notes, behind each fsync of an append-only file, how many of its bytes that covered.
 *
 * A line is the file's name, and the size that it had when the call began: what was written during it may not be on the
 * disk.
 * $SYNCED names the file of these lines, and $SYNC_MS how long each call takes: a busy disk. tests/support/disk.py
 * compiles this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int sync_call(int);

static int noted(const char *name, int fd) {
    struct stat before;
    char link[64], path[4096], line[4200];
    const char *log = getenv("SYNCED");
    int failed = fstat(fd, &before);
    if (getenv("SYNC_MS")) usleep(1000 * atoi(getenv("SYNC_MS")));
    int result = ((sync_call *)dlsym(RTLD_NEXT, name))(fd);
    if (result || failed || !log) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return result;
    path[length] = 0;
    if (!strstr(path, ".incr.aof")) return result;
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (out < 0 || write(out, line, snprintf(line, sizeof line, "%s %lld\n", path, (long long)before.st_size)) < 0) abort();
    close(out);
    return result;
}

int fdatasync(int fd) { return noted("fdatasync", fd); }
int fsync(int fd) { return noted("fsync", fd); }
