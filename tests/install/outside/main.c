/* SPDX-License-Identifier: Apache-2.0 */
/* A program outside the tree that uses the installed library: the sum over a world of one. */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    float values[3] = {1.0f, 2.0f, 3.0f};
    if (strcmp(ls_version(), LS_VERSION) != 0) {
        printf("headers are %s, the library is %s\n", LS_VERSION, ls_version());
        return 1;
    }
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_all_reduce(ls_world(), values, values, 3, LS_FLOAT32, LS_SUM, NULL, NULL));
    printf("rank %d of %d: %g %g %g\n", ls_rank(), ls_world_size(), (double)values[0],
           (double)values[1], (double)values[2]);
    LS_CHECK(ls_finalize());
    return 0;
}
