/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the table that entries.c has. */
#ifndef LS_CUDA_ENTRIES_H
#define LS_CUDA_ENTRIES_H

#include "cuda/launch.h"

#include "cuda/cuda_prototypes.h"

#endif
