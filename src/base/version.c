/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the library that was found at run time; version.h has that of the headers. */
#include <lockstep/version.h>

const char *ls_version(void)
{
    return LS_VERSION;
}
