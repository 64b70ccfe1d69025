/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a command: what it has printed may still be in a buffer, and a disk full. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

/* Of a write that failed before the end, whose text is no longer in the buffer. */
static int earlier_error;

void cli_flush(FILE *out)
{
    if (fflush(out) != 0 && out == stdout && earlier_error == 0) {
        earlier_error = errno;
    }
}

int cli_end(int status)
{
    const bool lost = ferror(stdout) != 0;
    errno = earlier_error;
    if (fclose(stdout) == 0 && !lost) {
        return status;
    }
    (void)fprintf(stderr,
                  "error: standard output cannot be written: %s; some of it is missing there\n",
                  strerror(errno != 0 ? errno : EIO));
    return status != 0 ? status : EXIT_FAILURE;
}
