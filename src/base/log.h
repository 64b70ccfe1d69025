/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines "[rank 2] warning: …", one write each, to stderr. Levels by LOCKSTEP_DEBUG. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/runtime.h>

#define LS__ERROR(...) ls_log_message(LS_LOG_ERROR, __VA_ARGS__)
#define LS__WARN(...) ls_log_message(LS_LOG_WARN, __VA_ARGS__)
#define LS__INFO(...) ls_log_message(LS_LOG_INFO, __VA_ARGS__)
#define LS__DEBUG(...) ls_log_message(LS_LOG_DEBUG, __VA_ARGS__)

/* The level the environment asks for: LOCKSTEP_DEBUG, else TORCH_DISTRIBUTED_DEBUG, else warn.
 * `*known` (may be NULL) says whether the word was one; an unknown one means warn. */
ls_log_level ls__log_level_setting(bool *known);

#endif
