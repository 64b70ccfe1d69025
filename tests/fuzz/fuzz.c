/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer's door to the target FUZZ_TARGET. */
#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)FUZZ_TARGET(data, bytes);
    return 0;
}
