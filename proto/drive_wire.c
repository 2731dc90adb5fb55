/* proto/drive_wire.c - frames, HELLO, keys and addresses; see drive_link.h. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "proto/drive_link.h"
#include "proto/envelope.h"

#define KEY_FILE_BYTES 8192

/* ---- frames ------------------------------------------------------------------------------ */

int drive_frame_check(const void *frame, uint64_t frame_bytes, uint64_t payload_bytes,
                      struct hill_why *why)
{
    struct drive_frame f;
    if (frame_bytes != sizeof f)
        return hill_fail(why, HILL_E_PROTOCOL, "a frame of %llu bytes",
                         (unsigned long long)frame_bytes);
    memcpy(&f, frame, sizeof f);
    if (f.magic != DRIVE_MAGIC)
        return hill_fail(why, HILL_E_PROTOCOL, "a frame that begins with %08x", f.magic);
    if (f.version != DRIVE_VERSION)
        return hill_fail(why, HILL_E_UNSUPPORTED, "version %u of the link, this is %u", f.version,
                         DRIVE_VERSION);
    if (f.kind < DRIVE_HELLO || f.kind >= DRIVE_KINDS)
        return hill_fail(why, HILL_E_PROTOCOL, "a message of kind %u", f.kind);
    bool empty = f.kind == DRIVE_PING || f.kind == DRIVE_BYE;
    bool fits = f.kind == DRIVE_HELLO ? payload_bytes == sizeof(struct drive_hello)
                                      : payload_bytes <= DRIVE_PAYLOAD_MAX;
    if (!fits || (empty && payload_bytes))
        return hill_fail(why, HILL_E_PROTOCOL, "a message of kind %u with %llu bytes", f.kind,
                         (unsigned long long)payload_bytes);
    return 0;
}

void drive_hello_fill(struct drive_hello *out)
{
    *out = (struct drive_hello){PROTO_VERSION, PROTO_RECORDS_VERSION, ""};
    snprintf(out->version, sizeof out->version, "%s", HILL_VERSION);
}

int drive_hello_check(const struct drive_hello *hello, struct hill_why *why)
{
    struct drive_hello own;
    drive_hello_fill(&own);
    if (hello->protocol_version == own.protocol_version &&
        hello->records_version == own.records_version &&
        strncmp(hello->version, own.version, sizeof own.version) == 0)
        return 0;
    char version[sizeof hello->version + 1] = "";
    for (unsigned i = 0; i < sizeof hello->version && isgraph((unsigned char)hello->version[i]);
         i++)
        version[i] = hello->version[i];
    return hill_fail(why, HILL_E_UNSUPPORTED,
                     "version %s with protocol %u and records %u there, %s with %u and %u here: "
                     "install the same on both hosts",
                     version, hello->protocol_version, hello->records_version, own.version,
                     own.protocol_version, own.records_version);
}

/* ---- control messages --------------------------------------------------------------------- */

/* As on the sockets of a run folder (envelope.h). */
static const uint8_t envelope[8] = {'H', 'I', 'L', 'L', PROTO_VERSION, 0, 0, 0};

uint8_t *drive_control_pack(const Hill__Message *message, uint32_t *bytes)
{
    size_t body = hill__message__get_packed_size(message);
    uint8_t *out = malloc(sizeof envelope + body);
    if (!out)
        return NULL;
    memcpy(out, envelope, sizeof envelope);
    *bytes = (uint32_t)(sizeof envelope + hill__message__pack(message, out + sizeof envelope));
    return out;
}

int drive_control_read(const struct drive_message *m, Hill__Message **out, struct hill_why *why)
{
    if (m->bytes < sizeof envelope)
        return hill_fail(why, HILL_E_PROTOCOL, "a control message of %u bytes", m->bytes);
    return proto_decode(m->payload, sizeof envelope, m->payload + sizeof envelope,
                        m->bytes - sizeof envelope, out, why);
}

/* ---- keys -------------------------------------------------------------------------------- */

/* Who may read a secret key is the peer, and who may write public ones lets in whom he likes. */
static const char *fault_of(int fd, bool secret)
{
    struct stat info;
    if (fstat(fd, &info) || (info.st_uid != 0 && info.st_uid != geteuid()))
        return "belongs to another user";
    if (secret && (info.st_mode & 077))
        return "is a secret key that others may read: chmod 600";
    return info.st_mode & 022 ? "may be written by others: chmod go-w" : NULL;
}

static int read_file(const char *path, bool secret, char *out, struct hill_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, KEY_FILE_BYTES - 1) : -1;
    int reason = errno;
    const char *fault = fd >= 0 ? fault_of(fd, secret) : NULL;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return hill_fail(why, HILL_E_IO, "reading the key in %.200s failed: %s", path,
                         strerror(reason));
    if (fault)
        return hill_fail(why, HILL_E_INVALID, "%.200s %s", path, fault);
    out[n] = '\0';
    return 0;
}

static bool is_key(const char *text)
{
    uint8_t bytes[32];
    return strlen(text) == DRIVE_KEY_BYTES - 1 && zmq_z85_decode(bytes, text);
}

/* KEY, or URL KEY. */
static bool take_peer(struct drive_keys *out, const char *line)
{
    const char *space = strchr(line, ' '), *key = space ? space + 1 : line;
    char *url = out->urls[out->n_peers];
    if (out->n_peers == DRIVE_PEERS_MAX || !is_key(key) || key - line > DRIVE_ADDRESS_BYTES)
        return false;
    if (space)
        snprintf(url, DRIVE_ADDRESS_BYTES, "%.*s", (int)(space - line), line);
    if (space && drive_address_check(url, NULL))
        return false;
    memcpy(out->peers[out->n_peers++], key, DRIVE_KEY_BYTES);
    return true;
}

/* text: KEY_FILE_BYTES, to be overwritten after it. */
static int read_keys(struct drive_keys *out, const char *key_path, const char *peer_path,
                     char *text, struct hill_why *why)
{
    char *next;
    *out = (struct drive_keys){.n_peers = 0};
    int rc = read_file(key_path, true, text, why);
    if (rc)
        return rc;
    char *public_key = strtok_r(text, "\n", &next), *secret_key = strtok_r(NULL, "\n", &next);
    if (!public_key || !secret_key || !is_key(public_key) || !is_key(secret_key))
        return hill_fail(why, HILL_E_INVALID, "%.200s is no key of hillctl keygen", key_path);
    memcpy(out->public_key, public_key, DRIVE_KEY_BYTES);
    memcpy(out->secret_key, secret_key, DRIVE_KEY_BYTES);
    rc = read_file(peer_path, false, text, why);
    for (char *line = rc ? NULL : strtok_r(text, "\n", &next); line;
         line = strtok_r(NULL, "\n", &next)) {
        if (!take_peer(out, line))
            return hill_fail(why, HILL_E_INVALID,
                             "%.200s: line %u is no public key of hillctl keygen", peer_path,
                             out->n_peers + 1);
    }
    if (!rc && !out->n_peers)
        return hill_fail(why, HILL_E_INVALID, "%.200s holds no public key", peer_path);
    return rc;
}

int drive_keys_read(struct drive_keys *out, const char *key_path, const char *peer_path,
                    struct hill_why *why)
{
    char text[KEY_FILE_BYTES];
    int rc = read_keys(out, key_path, peer_path, text, why);
    explicit_bzero(text, sizeof text);
    return rc;
}

int drive_keys_choose(struct drive_keys *keys, const char *url, struct hill_why *why)
{
    uint32_t at = 0, named = 0, bare = 0;
    for (uint32_t i = 0; i < keys->n_peers; i++)
        named += strcmp(keys->urls[i], url) == 0;
    for (uint32_t i = 0; i < keys->n_peers; i++) {
        bare += !keys->urls[i][0];
        if (named ? strcmp(keys->urls[i], url) == 0 : !keys->urls[i][0])
            at = i;
    }
    if (named ? named > 1 : bare != 1)
        return hill_fail(why, HILL_E_INVALID,
                         "%u public keys may be that of %.200s: of several keys each stands on a "
                         "line tcp://HOST:PORT KEY",
                         named ? named : bare, url);
    memmove(keys->peers[0], keys->peers[at], DRIVE_KEY_BYTES);
    memmove(keys->urls[0], keys->urls[at], DRIVE_ADDRESS_BYTES);
    keys->n_peers = 1;
    return 0;
}

static int write_file(const char *path, mode_t mode, const char *text, struct hill_why *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return hill_fail(why, errno == EEXIST ? HILL_E_BUSY : HILL_E_IO,
                         "writing a key to %.200s failed: %s", path, strerror(errno));
    bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fsync(fd) == 0;
    int reason = errno;
    close(fd);
    if (written)
        return 0;
    unlink(path);
    return hill_fail(why, HILL_E_IO, "writing a key to %.200s failed: %s", path, strerror(reason));
}

int drive_keys_write(const char *path, struct hill_why *why)
{
    char public_key[DRIVE_KEY_BYTES], secret_key[DRIVE_KEY_BYTES], text[2 * DRIVE_KEY_BYTES + 2];
    char beside[4096];
    if ((size_t)snprintf(beside, sizeof beside, "%s.pub", path) >= sizeof beside)
        return hill_fail(why, HILL_E_INVALID, "the path of a key is too long");
    if (zmq_curve_keypair(public_key, secret_key))
        return hill_fail(why, HILL_E_UNSUPPORTED, "libzmq was built without CurveZMQ");
    snprintf(text, sizeof text, "%s\n%s\n", public_key, secret_key);
    int rc = write_file(path, 0600, text, why);
    explicit_bzero(secret_key, sizeof secret_key);
    explicit_bzero(text, sizeof text);
    if (rc)
        return rc;
    snprintf(text, sizeof text, "%s\n", public_key);
    rc = write_file(beside, 0644, text, why);
    if (rc)
        unlink(path);
    return rc;
}

/* ---- addresses --------------------------------------------------------------------------- */

int drive_address_check(const char *url, struct hill_why *why)
{
    const char *host = strncmp(url, "tcp://", 6) == 0 ? url + 6 : NULL;
    const char *colon = host ? strrchr(host, ':') : NULL;
    char *end = NULL;
    long port = colon && isdigit((unsigned char)colon[1]) ? strtol(colon + 1, &end, 10) : 0;
    if (!host || !colon || colon == host || port < 1 || port > 65535 || *end ||
        strlen(url) >= DRIVE_ADDRESS_BYTES)
        return hill_fail(why, HILL_E_INVALID, "'%.200s' is no tcp://HOST:PORT", url);
    for (const char *c = host; c < colon; c++)
        if (!isalnum((unsigned char)*c) && !strchr(".-_[]:%*", *c))
            return hill_fail(why, HILL_E_INVALID, "'%.200s' is no tcp://HOST:PORT", url);
    return 0;
}
