/* SPDX-License-Identifier: Apache-2.0 */
/* The version of these headers; ls_version returns that of the library that is loaded. */
#ifndef LOCKSTEP_VERSION_H
#define LOCKSTEP_VERSION_H

#include <lockstep/types.h>

#define LS_VERSION_MAJOR 0
#define LS_VERSION_MINOR 2
#define LS_VERSION_PATCH 0
#define LS_VERSION "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif
LS_API const char *ls_version(void); /* "0.2.0" */
#ifdef __cplusplus
}
#endif
#endif
