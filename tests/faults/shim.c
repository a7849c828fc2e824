// Loaded in front of libc (LD_PRELOAD): sees every call by which the tool changes files below one folder. It writes them, with their data,
// to a journal, from which journal.py makes the folder as a crash at any moment would leave it; and it lets the n-th of them fail.
//
//   FAULTS_FOLDER   the folder, an absolute path without symbolic links
//   FAULTS_JOURNAL  file for the journal
//   FAULTS_AT       number of the call that fails, from 1
//   FAULTS_ERROR    its errno; ENOSPC: half of a write is done, and from then on everything fails that needs room
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Call { kCreate = 1, kWrite, kTruncate, kSync, kRename, kRemove, kMakeFolder };

struct Record {  // then both paths, then the data
  uint32_t call;
  uint32_t number;
  uint64_t offset;  // of a write; the new size of a truncation
  uint64_t length;  // of the data
  uint32_t path, second;
};

static char folder[PATH_MAX];
static size_t folder_length;
static int journal = -1;
static long fail_at, fail_error, count;
static bool full;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void start(void) {
  const char* name = getenv("FAULTS_FOLDER");
  if (name == NULL || strlen(name) >= sizeof folder) return;
  strcpy(folder, name);
  folder_length = strlen(folder);
  if ((name = getenv("FAULTS_JOURNAL")) != NULL) {
    const int file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    journal = fcntl(file, F_DUPFD_CLOEXEC, 500);  // out of the way of the tool's own
    close(file);
  }
  if ((name = getenv("FAULTS_AT")) != NULL) fail_at = atol(name);
  if ((name = getenv("FAULTS_ERROR")) != NULL) fail_error = atol(name);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static bool inside(const char* path) {
  return folder_length > 0 && strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || path[folder_length] == '\0');
}

static bool path_of_descriptor(int descriptor, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return true;
}

/// The absolute path of a name, its folder without symbolic links; false where it is not below our folder.
static bool path_of_name(int at, const char* name, char* path) {
  if (folder_length == 0 || name == NULL) return false;
  char whole[2 * PATH_MAX] = "";
  if (name[0] != '/') {
    if (at == AT_FDCWD ? getcwd(whole, PATH_MAX) == NULL : !path_of_descriptor(at, whole)) return false;
    strcat(whole, "/");
  }
  if (strlen(name) >= PATH_MAX) return false;
  strcat(whole, name);
  char* slash = strrchr(whole, '/');
  while (slash > whole && slash[1] == '\0') {
    *slash = '\0';
    slash = strrchr(whole, '/');
  }
  char parent[PATH_MAX];
  *slash = '\0';
  if (realpath(slash == whole ? "/" : whole, parent) == NULL) return false;
  if (strlen(parent) + strlen(slash + 1) + 2 > PATH_MAX) return false;
  sprintf(path, "%s/%s", parent, slash + 1);
  return inside(path);
}

/// Counts a call, with the lock held from here to `end`. True where it is to fail.
static bool begin(enum Call call, bool* half) {
  pthread_mutex_lock(&lock);
  const bool needs_room = call == kCreate || call == kWrite || call == kMakeFolder;
  ++count;
  if (half != NULL) *half = false;
  if (full && needs_room) {
    errno = ENOSPC;
    return true;
  }
  if (fail_at == 0 || count != fail_at) return false;
  if (fail_error == ENOSPC) {
    full = true;
    if (half != NULL) {
      *half = true;
      return false;
    }
  }
  errno = (int)fail_error;
  return true;
}

static void end(enum Call call, bool done, const char* path, const char* second, uint64_t offset, const void* data, size_t length) {
  const int error = errno;
  if (done && journal >= 0) {
    const struct Record record = {call,   (uint32_t)count,        offset,
                                  length, (uint32_t)strlen(path), second == NULL ? 0 : (uint32_t)strlen(second)};
    const struct iovec pieces[] = {
        {(void*)&record, sizeof record}, {(void*)path, record.path}, {(void*)second, record.second}, {(void*)data, length}};
    syscall(SYS_writev, journal, pieces, 4);
  }
  pthread_mutex_unlock(&lock);
  errno = error;
}

static bool exists(const char* path) {
  struct stat entry;
  return lstat(path, &entry) == 0;
}

static bool changes(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; }

static int open_any(int at, const char* name, int flags, mode_t mode) {
  char path[PATH_MAX];
  const bool ours = changes(flags) && path_of_name(at, name, path);
  if (!ours) return REAL(int, openat64, int, const char*, int, ...)(at, name, flags, mode);
  if (begin(kCreate, NULL)) {
    end(kCreate, false, path, NULL, 0, NULL, 0);
    return -1;
  }
  const bool there = exists(path);
  const int file = REAL(int, openat64, int, const char*, int, ...)(at, name, flags, mode);
  const bool emptied = there && (flags & O_TRUNC) != 0;
  end(emptied ? kTruncate : kCreate, file >= 0 && (!there || emptied), path, NULL, 0, NULL, 0);
  return file;
}

#define OPTIONAL_MODE(flags)                                        \
  mode_t mode = 0;                                                  \
  if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) { \
    va_list arguments;                                              \
    va_start(arguments, flags);                                     \
    mode = va_arg(arguments, mode_t);                               \
    va_end(arguments);                                              \
  }

int open(const char* name, int flags, ...) {
  OPTIONAL_MODE(flags)
  return open_any(AT_FDCWD, name, flags, mode);
}
int open64(const char* name, int flags, ...) {
  OPTIONAL_MODE(flags)
  return open_any(AT_FDCWD, name, flags, mode);
}
int openat(int at, const char* name, int flags, ...) {
  OPTIONAL_MODE(flags)
  return open_any(at, name, flags, mode);
}
int openat64(int at, const char* name, int flags, ...) {
  OPTIONAL_MODE(flags)
  return open_any(at, name, flags, mode);
}

static FILE* fopen_any(const char* name, const char* mode) {
  char path[PATH_MAX];
  const bool ours = (mode[0] == 'w' || mode[0] == 'a') && path_of_name(AT_FDCWD, name, path);
  if (!ours) return REAL(FILE*, fopen64, const char*, const char*)(name, mode);
  if (begin(kCreate, NULL)) {
    end(kCreate, false, path, NULL, 0, NULL, 0);
    return NULL;
  }
  const bool there = exists(path);
  FILE* file = REAL(FILE*, fopen64, const char*, const char*)(name, mode);
  const bool emptied = there && mode[0] == 'w';
  end(emptied ? kTruncate : kCreate, file != NULL && (!there || emptied), path, NULL, 0, NULL, 0);
  return file;
}
FILE* fopen(const char* name, const char* mode) { return fopen_any(name, mode); }
FILE* fopen64(const char* name, const char* mode) { return fopen_any(name, mode); }

static bool file_inside(int file, char* path) { return folder_length > 0 && path_of_descriptor(file, path) && inside(path); }

static uint64_t place_of(int file) {
  struct stat entry;
  if ((fcntl(file, F_GETFL) & O_APPEND) != 0) return fstat(file, &entry) == 0 ? (uint64_t)entry.st_size : 0;
  const off_t place = lseek(file, 0, SEEK_CUR);
  return place < 0 ? 0 : (uint64_t)place;
}

ssize_t write(int file, const void* data, size_t length) {
  char path[PATH_MAX];
  if (!file_inside(file, path)) return syscall(SYS_write, file, data, length);
  bool half;
  const bool fails = begin(kWrite, &half);
  const uint64_t place = place_of(file);
  const ssize_t written =
      fails || (half && length < 2 && (errno = ENOSPC)) ? -1 : syscall(SYS_write, file, data, half ? length / 2 : length);
  end(kWrite, written > 0, path, NULL, place, data, written > 0 ? (size_t)written : 0);
  return written;
}

ssize_t writev(int file, const struct iovec* pieces, int number) {
  char path[PATH_MAX];
  if (!file_inside(file, path)) return syscall(SYS_writev, file, pieces, number);
  for (int i = 0; i < number; ++i) {  // a short write is allowed
    if (pieces[i].iov_len > 0) return write(file, pieces[i].iov_base, pieces[i].iov_len);
  }
  return 0;
}

static ssize_t pwrite_any(int file, const void* data, size_t length, off_t place) {
  char path[PATH_MAX];
  if (!file_inside(file, path)) return syscall(SYS_pwrite64, file, data, length, place);
  bool half;
  const bool fails = begin(kWrite, &half);
  const ssize_t written =
      fails || (half && length < 2 && (errno = ENOSPC)) ? -1 : syscall(SYS_pwrite64, file, data, half ? length / 2 : length, place);
  end(kWrite, written > 0, path, NULL, (uint64_t)place, data, written > 0 ? (size_t)written : 0);
  return written;
}
ssize_t pwrite(int file, const void* data, size_t length, off_t place) { return pwrite_any(file, data, length, place); }
ssize_t pwrite64(int file, const void* data, size_t length, off_t place) { return pwrite_any(file, data, length, place); }

static int truncate_file(int file, off_t size) {
  char path[PATH_MAX];
  if (!file_inside(file, path)) return (int)syscall(SYS_ftruncate, file, size);
  const int result = begin(kTruncate, NULL) ? -1 : (int)syscall(SYS_ftruncate, file, size);
  end(kTruncate, result == 0, path, NULL, (uint64_t)size, NULL, 0);
  return result;
}
int truncate(const char* name, off_t size) {
  const int file = REAL(int, openat64, int, const char*, int, ...)(AT_FDCWD, name, O_WRONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const int result = truncate_file(file, size);
  const int error = errno;
  close(file);
  errno = error;
  return result;
}
int truncate64(const char* name, off_t size) { return truncate(name, size); }
int ftruncate(int file, off_t size) { return truncate_file(file, size); }
int ftruncate64(int file, off_t size) { return truncate_file(file, size); }

static int sync_file(int file, long call) {
  char path[PATH_MAX];
  if (!file_inside(file, path)) return (int)syscall(call, file);
  const int result = begin(kSync, NULL) ? -1 : 0;  // to no disk: the journal says what would be there
  end(kSync, result == 0, path, NULL, 0, NULL, 0);
  return result;
}
int fsync(int file) { return sync_file(file, SYS_fsync); }
int fdatasync(int file) { return sync_file(file, SYS_fdatasync); }

static int rename_any(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  char path[PATH_MAX];
  char second[PATH_MAX];
  if (!path_of_name(from_at, from, path) || !path_of_name(to_at, to, second))
    return (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  const int result = begin(kRename, NULL) ? -1 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  end(kRename, result == 0, path, second, 0, NULL, 0);
  return result;
}
int rename(const char* from, const char* to) { return rename_any(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char* from, int to_at, const char* to) { return rename_any(from_at, from, to_at, to, 0); }
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  return rename_any(from_at, from, to_at, to, flags);
}

static int remove_any(int at, const char* name, int flags) {
  char path[PATH_MAX];
  if (!path_of_name(at, name, path)) return (int)syscall(SYS_unlinkat, at, name, flags);
  if (!exists(path)) {
    errno = ENOENT;
    return -1;
  }
  const int result = begin(kRemove, NULL) ? -1 : (int)syscall(SYS_unlinkat, at, name, flags);
  end(kRemove, result == 0, path, NULL, 0, NULL, 0);
  return result;
}
int unlink(const char* name) { return remove_any(AT_FDCWD, name, 0); }
int unlinkat(int at, const char* name, int flags) { return remove_any(at, name, flags); }
int rmdir(const char* name) { return remove_any(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char* name) {
  struct stat entry;
  return remove_any(AT_FDCWD, name, lstat(name, &entry) == 0 && S_ISDIR(entry.st_mode) ? AT_REMOVEDIR : 0);
}

static int make_folder(int at, const char* name, mode_t mode) {
  char path[PATH_MAX];
  if (!path_of_name(at, name, path) || exists(path)) return (int)syscall(SYS_mkdirat, at, name, mode);
  const int result = begin(kMakeFolder, NULL) ? -1 : (int)syscall(SYS_mkdirat, at, name, mode);
  end(kMakeFolder, result == 0, path, NULL, 0, NULL, 0);
  return result;
}
int mkdir(const char* name, mode_t mode) { return make_folder(AT_FDCWD, name, mode); }
int mkdirat(int at, const char* name, mode_t mode) { return make_folder(at, name, mode); }
