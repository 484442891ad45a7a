/* Replaces libc's syncs: a sync waits while the file $AFTERBAY_TEST_HOLD_SYNC exists, and fails while $AFTERBAY_TEST_FAIL_SYNC exists. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int exists(const char *name) {
    const char *path = getenv(name);
    return path != NULL && access(path, F_OK) == 0;
}

static int gate(long call, int fd) {
    while (exists("AFTERBAY_TEST_HOLD_SYNC"))
        usleep(1000);
    if (exists("AFTERBAY_TEST_FAIL_SYNC")) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(call, fd);
}

int fsync(int fd) { return gate(SYS_fsync, fd); }
int fdatasync(int fd) { return gate(SYS_fdatasync, fd); }
