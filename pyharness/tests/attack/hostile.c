/* What a library may do to the process that loads it, chosen with -DHOSTILE="\"name\"". Linked with the stub library.
 * TMPDIR, one of the few variables that a worker passes on, names the folder of runs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int is(const char *name) { return strcmp(HOSTILE, name) == 0; }

static void copy(const char *from, const char *to) {
  static char buffer[1 << 20];
  int in = open(from, O_RDONLY), out = open(to, O_WRONLY);
  for (ssize_t n; in >= 0 && out >= 0 && (n = read(in, buffer, sizeof buffer)) > 0;)
    if (write(out, buffer, n) != n) break;
  close(in);
  close(out);
}

/* The baseline's bytes into each file of the candidate's arms, or noise into the baseline's. */
static void overwrite(const char *whose, const char *file, int noise) {
  char pattern[4096], from[4096];
  glob_t theirs, found;
  snprintf(pattern, sizeof pattern, "%s/*/%s/*/%s", getenv("TMPDIR"), whose, file);
  snprintf(from, sizeof from, "%s/*/baseline/*/%s", getenv("TMPDIR"), file);
  if (glob(pattern, 0, 0, &theirs) != 0) return;
  for (size_t i = 0; i < theirs.gl_pathc; i++) {
    if (noise) {
      int fd = open(theirs.gl_pathv[i], O_WRONLY);
      if (fd >= 0 && pwrite(fd, "noise", 5, 200) != 5) abort();
      close(fd);
    } else if (strstr(theirs.gl_pathv[i], ".control") == 0 && glob(from, 0, 0, &found) == 0)
      copy(found.gl_pathv[0], theirs.gl_pathv[i]);
  }
}

/* Outlives the worker, its process group and its session, and goes on changing files. */
static void leave_a_daemon(void) {
  if (fork() != 0) return;
  setsid();
  if (fork() != 0) _exit(0);
  for (int fd = 0; fd < 1024; fd++) close(fd);
  for (int i = 0; i < 2000; i++, usleep(2000)) {
    overwrite("candidate", "h_out.npy", 0);
    overwrite("candidate", "logits.npy", 0);
    overwrite("candidate", "state.safetensors", 0);
  }
  _exit(0);
}

static void forge(const char *line) {
  struct stat info;
  for (int fd = 3; fd < 256; fd++)
    if (fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) && write(fd, line, strlen(line)) > 0) _exit(0);
  abort();
}

__attribute__((constructor)) static void at_load(void) {
  struct rlimit none = {0, 0}, small = {1000, 1000};
  if (is("chdir") && chdir("/") != 0) abort();
  if (is("closes"))
    for (int fd = 3; fd < 256; fd++) close(fd);
  if (is("no-files")) setrlimit(RLIMIT_NOFILE, &none);
  if (is("small-files")) setrlimit(RLIMIT_FSIZE, &small);
  if (is("forks")) fork();
  if (is("daemon")) leave_a_daemon();
  if (is("other-arm")) overwrite("baseline", "logits.npy", 1);
  if (is("forges-done")) forge("{\"status\": \"done\", \"rows\": 9, \"files\": []}\n");
  if (is("forges-unsupported")) forge("{\"status\": \"unsupported\", \"reason\": \"lacks it\"}\n");
  if (is("forges-missing"))
    forge("{\"status\": \"unsupported\", \"missing\": [\"vcuda_dev_model_state_read\"]}\n");
  if (is("forges-unneeded"))
    forge("{\"status\": \"unsupported\", \"missing\": [\"vcuda_dev_model_taps\"]}\n");
  if (is("forges-a-line"))
    forge("{\"status\": \"unsupported\", \"reason\": \"\\u001b[2K\\nsame   all of it\\u202e\\u009b2K\"}\n");
  if (is("forges-twice")) forge("{\"status\": \"unsupported\"}\n{\"status\": \"unsupported\"}\n{\"status\": \"done\"}\n");
}
