/* base/harden.c - see harden.h. */
#include "base/harden.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#else
#define OWN_ARCH 0 /* no filter: its numbers are not known here */
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* What the headers of the machine that builds may not have yet; the kernel that runs is asked. */
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif
#ifndef LANDLOCK_ACCESS_NET_BIND_TCP
#define LANDLOCK_ACCESS_NET_BIND_TCP    (1ULL << 0)
#define LANDLOCK_ACCESS_NET_CONNECT_TCP (1ULL << 1)
#endif
#ifndef LANDLOCK_SCOPE_SIGNAL
#define LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0)
#define LANDLOCK_SCOPE_SIGNAL               (1ULL << 1)
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat    463
#define SYS_removexattrat 466
#endif
#ifndef SYS_file_setattr
#define SYS_file_setattr 469
#endif

static bool switched_off(void)
{
    const char *text = getenv("HILL_HARDEN");
    return SANITIZED || (text && strcmp(text, "off") == 0);
}

/* No more descriptors than now, and no more than any process here needs: root alone can raise that
 * again. */
static void keep_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return;
    if (files.rlim_cur > HARDEN_DESCRIPTORS)
        files.rlim_cur = HARDEN_DESCRIPTORS;
    files.rlim_max = files.rlim_cur;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* Of a core that is written all the same, where no limit but 0 may be set: registers, no memory. */
static void leave_memory_out(void)
{
    int fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "0", 1) != 1)
        log_debug("a core file would have this process's memory: %s", strerror(errno));
    close(fd);
}

bool harden_process(void)
{
    struct rlimit core = {0};
    if (switched_off())
        return false;
    getrlimit(RLIMIT_CORE, &core);
    /* The limit above it stays: prlimit can raise it for a process that crashes. */
    core.rlim_cur = core.rlim_max < HARDEN_CORE ? core.rlim_max : HARDEN_CORE;
    setrlimit(RLIMIT_CORE, &core);
    leave_memory_out();
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* ---- seccomp ----------------------------------------------------------------------------- */

/* What no worker calls, whatever library it has loaded: looking into other processes, the machine's
 * settings, other users, sockets that listen, a new io_uring (it makes sockets and opens files past
 * a filter; the agent has made its own before, csd_agent/file_io.h). */
static const uint16_t refused[] = {
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_perf_event_open,
    SYS_bpf,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_open_by_handle_at,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_mount_setattr,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_mknodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_bind,
    SYS_listen,
    SYS_io_uring_setup,
#if defined(__x86_64__)
    SYS_kexec_file_load,
    SYS_iopl,
    SYS_ioperm,
    SYS_mknod,
    SYS_chown,
    SYS_lchown,
#endif
};
/* Beside these, of one that starts no programs: exec, and signals to others. */
static const uint16_t refused_without_programs[] = {SYS_execve, SYS_execveat, SYS_tkill};

/* Beside these, of one that names its files: who owns a file, its mode, times and attributes, which
 * Landlock leaves to every path. */
static const uint16_t refused_without_files[] = {
    SYS_fchmod,       SYS_fchmodat,      SYS_fchmodat2,    SYS_utimensat,   SYS_setxattr,
    SYS_lsetxattr,    SYS_fsetxattr,     SYS_setxattrat,   SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, SYS_removexattrat, SYS_file_setattr,
#if defined(__x86_64__)
    SYS_chmod,        SYS_utime,         SYS_utimes,       SYS_futimesat,
#endif
};

/* Beside these, of one that takes no connections. */
static const uint16_t refused_without_accepting[] = {SYS_accept, SYS_accept4};

#define REFUSED  (sizeof refused / sizeof *refused)
#define PROGRAMS (sizeof refused_without_programs / sizeof *refused_without_programs)
#define FILES    (sizeof refused_without_files / sizeof *refused_without_files)
#define ACCEPTS  (sizeof refused_without_accepting / sizeof *refused_without_accepting)

struct filter {
    /* two for each number, five for each that is allowed with one argument */
    struct sock_filter lines[2 * (REFUSED + PROGRAMS + FILES + ACCEPTS) + 5 * 5 + 8];
    unsigned short n;
};

static void add(struct filter *f, struct sock_filter line)
{
    f->lines[f->n++] = line;
}

static void load(struct filter *f, size_t offset)
{
    add(f, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void end_with(struct filter *f, uint32_t action)
{
    add(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

static void refuse(struct filter *f, uint32_t number)
{
    add(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    end_with(f, SECCOMP_RET_ERRNO | EPERM);
}

/* The call is refused unless its first argument is that. */
static void only_with(struct filter *f, uint32_t number, uint32_t first)
{
    add(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4));
    load(f, offsetof(struct seccomp_data, args));
    add(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 1, 0));
    end_with(f, SECCOMP_RET_ERRNO | EPERM);
    end_with(f, SECCOMP_RET_ALLOW);
}

static bool set_filter(const struct harden_needs *needs)
{
    struct filter f = {.n = 0};
    bool programs = needs->programs, accepts = needs->accepts;
    if (!OWN_ARCH)
        return false;
    load(&f, offsetof(struct seccomp_data, arch));
    add(&f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0));
    end_with(&f, SECCOMP_RET_KILL_PROCESS);
    load(&f, offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    /* the same calls under other numbers */
    add(&f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
    end_with(&f, SECCOMP_RET_ERRNO | EPERM);
#endif
    for (unsigned i = 0; i < REFUSED; i++)
        refuse(&f, refused[i]);
    for (unsigned i = 0; !programs && i < PROGRAMS; i++)
        refuse(&f, refused_without_programs[i]);
    for (unsigned i = 0; !needs->files && i < FILES; i++)
        refuse(&f, refused_without_files[i]);
    for (unsigned i = 0; !accepts && i < ACCEPTS; i++)
        refuse(&f, refused_without_accepting[i]);
    if (!needs->connects)
        only_with(&f, SYS_socket, AF_UNIX);
    if (!programs) { /* a program that it started would have another pid */
        only_with(&f, SYS_kill, (uint32_t)getpid());
        only_with(&f, SYS_tgkill, (uint32_t)getpid());
        only_with(&f, SYS_rt_sigqueueinfo, (uint32_t)getpid());
        only_with(&f, SYS_rt_tgsigqueueinfo, (uint32_t)getpid());
    }
    end_with(&f, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = f.n, .filter = f.lines};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

bool harden_has_seccomp(void)
{
    return OWN_ARCH && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

/* ---- Landlock ---------------------------------------------------------------------------- */

#define READS                                                                                      \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE)
#define WRITES                                                                                     \
    (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG)
#define OTHERS                                                                                     \
    (LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR |  \
     LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | \
     LANDLOCK_ACCESS_FS_MAKE_SYM)
#define OF_FILES                                                                                   \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE)

/* struct landlock_ruleset_attr of version 6; an older kernel takes what is longer than its own as
 * long as the rest is zero. */
struct ruleset {
    uint64_t files, net, scopes;
};

int harden_landlock_version(void)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return version > 0 ? (int)version : 0;
}

static bool grant(int rules, const char *path, uint64_t access)
{
    struct stat info;
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR;
    bool folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
    struct landlock_path_beneath_attr rule = {.allowed_access = folder ? access : access & OF_FILES,
                                              .parent_fd = fd};
    bool granted = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    close(fd);
    return granted;
}

/* What is ruled. Who opens any file is in a domain by the rules of TCP alone, for rules of files
 * would refuse it to move a file to another folder; a domain's processes look into none outside. */
static struct ruleset handled_by(const struct harden_needs *needs, int version)
{
    struct ruleset handled = {0};
    if (!needs->files)
        handled.files = READS | WRITES | OTHERS | (version >= 3 ? LANDLOCK_ACCESS_FS_TRUNCATE : 0);
    if (version >= 4)
        handled.net =
            LANDLOCK_ACCESS_NET_BIND_TCP | (needs->connects ? 0 : LANDLOCK_ACCESS_NET_CONNECT_TCP);
    if (version >= 6) /* drivers may talk to a service by an abstract name */
        handled.scopes =
            LANDLOCK_SCOPE_SIGNAL | (needs->files ? 0 : LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET);
    return handled;
}

static bool set_rules(const struct harden_needs *needs)
{
    struct ruleset handled = handled_by(needs, harden_landlock_version());
    uint64_t reads = handled.files & READS,
             writes = handled.files & (READS | WRITES | LANDLOCK_ACCESS_FS_TRUNCATE),
             removes = handled.files & LANDLOCK_ACCESS_FS_REMOVE_FILE;
    if (!handled.files && !handled.net)
        return false;
    int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
    bool held = rules >= 0;
    for (const char *const *path = needs->reads; held && reads && path && *path; path++)
        held = grant(rules, *path, reads);
    for (const char *const *path = needs->writes; held && writes && path && *path; path++)
        held = grant(rules, *path, writes);
    for (const char *const *path = needs->removes; held && removes && path && *path; path++)
        held = grant(rules, *path, removes);
    held = held && syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    if (rules >= 0)
        close(rules);
    return held;
}

void harden_confine(const struct harden_needs *needs, char text[HARDEN_TEXT_BYTES])
{
    bool off = switched_off(), privileges = harden_process();
    bool ruled = !off && privileges && set_rules(needs);
    bool filtered = !off && privileges && set_filter(needs);
    if (off) {
        snprintf(text, HARDEN_TEXT_BYTES, "nothing (switched off)");
        return;
    }
    keep_descriptors();
    snprintf(text, HARDEN_TEXT_BYTES, "%s, %s", filtered ? "seccomp" : "no seccomp",
             ruled ? "Landlock" : "no Landlock");
}
