/* The TCP transport's insides, shared by tcp.c (frames) and tcp_join.c (making connections). */
#ifndef LS_COMM_TRANSPORT_TCP_WIRE_H
#define LS_COMM_TRANSPORT_TCP_WIRE_H

#include <stdatomic.h>

#include "base/size.h"
#include "comm/transport/tcp.h"

#define LS__FRAME_MAGIC 0x4c534652u /* "LSFR" */
#define LS__FRAME_MAX ((size_t)(sizeof(ls__frame) + sizeof(ls__message) + LS__TCP_PAYLOAD + 8))
#define LS__TCP_SLOTS 8 /* frames that wait to be sent on a connection */
#define LS__TCP_IN_BYTES ((2 * LS__FRAME_MAX + 63) / 64 * 64)
#define LS__TCP_BELL UINT64_MAX /* the tag of the bell */

typedef struct ls__frame {
    uint32_t magic;
    uint32_t bytes;    /* of the frame, a multiple of 8 */
    uint64_t number;   /* among the pair's frames in this direction, from 1 */
    uint32_t checksum; /* over the frame with this field 0 */
    uint32_t reserved;
    /* ls__message */
} ls__frame;

typedef struct ls__tcp_connection {
    ls__link *link;
    _Atomic uint32_t ready; /* LS__READY_…, set by whoever polled; taken by the token's holder */
    bool can_read, can_write;
    bool held;         /* the link itself still holds bytes that it took (TLS) */
    bool checked;      /* the frame at `start` is whole and sound */
    unsigned char *in; /* owned; the slots of `out` lie behind it */
    size_t start, end; /* bytes of `in` that were received and not released */
    unsigned char *out[LS__TCP_SLOTS];
    size_t out_bytes[LS__TCP_SLOTS];
    uint64_t queued, sent; /* frames; frame i lies in slot i % LS__TCP_SLOTS */
    size_t moved;          /* bytes of the first one not sent that are */
} ls__tcp_connection;

typedef struct ls__tcp_peer {
    ls__tcp_connection connection[LS__TCP_CONNECTIONS_MAX];
    uint64_t next_out, next_in; /* frame numbers */
    int reserved;               /* connection of the reservation, or -1 */
    int current;                /* connection of the message that was peeked, or -1 */
    uint64_t heard_ns;
    bool is_broken;
    char broken[192];
} ls__tcp_peer;

typedef struct ls__tcp {
    ls__transport base;
    const ls__env *env;
    int rank, size, connections;
    int poller, bell;
    const bool *far;    /* [size], copied */
    ls__tcp_peer *peer; /* [size] */
} ls__tcp;

/* tcp_join.c */
ls_status ls__tcp_join(ls__tcp *tcp, const ls__tcp_spec *spec,
                       void (*known)(void *arg, int peer, const char *about), void *arg);
/* Takes an authenticated link in as connection `index` to `peer`. */
ls_status ls__tcp_adopt(ls__tcp *tcp, int peer, int index, ls__link *link);

#endif
