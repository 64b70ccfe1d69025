/* SPDX-License-Identifier: Apache-2.0 */
/* The build without OpenSSL 3: links can only be plain. A request for TLS fails in
 * ls__tls_available, and no link reaches the other functions with a TLS state, which their
 * asserts state. */
#include "base/assert.h"
#include "base/error.h"
#include "job/link/internal.h"

ls_status ls__tls_available(void)
{
    return ls__fail(LS_ERR_UNSUPPORTED,
                    "cannot encrypt the connections that leave the host: this build has no TLS "
                    "because OpenSSL 3 was missing; install libssl-dev and build again, or use "
                    "--data-plane plain if everybody on the network may read and change the data");
}

ls_status ls__tls_begin(ls__link *link)
{
    (void)link;
    return ls__tls_available();
}

ls_status ls__tls_handshake(ls__link *link)
{
    (void)link;
    return ls__tls_available();
}

ssize_t ls__tls_read(ls__tls *tls, void *out, size_t bytes)
{
    (void)out;
    (void)bytes;
    LS_ASSERT(tls == NULL);
    return 0;
}

ssize_t ls__tls_send(ls__tls *tls, const ls__env_span *spans, int count)
{
    (void)spans;
    (void)count;
    LS_ASSERT(tls == NULL);
    return 0;
}

int ls__tls_flush(ls__tls *tls)
{
    LS_ASSERT(tls == NULL);
    return 0;
}

bool ls__tls_holds(const ls__tls *tls)
{
    LS_ASSERT(tls == NULL);
    return false;
}

const char *ls__tls_protection(const ls__tls *tls)
{
    LS_ASSERT(tls == NULL);
    return "";
}

void ls__tls_update_after(ls__tls *tls, uint64_t records)
{
    (void)records;
    LS_ASSERT(tls == NULL);
}

void ls__tls_end(ls__tls *tls)
{
    LS_ASSERT(tls == NULL);
}
