/* SPDX-License-Identifier: Apache-2.0 */
/* `saver FOLDER STEP` saves a step into a folder and ends; the tests kill it on the way. */
#include "small.h"

int main(int argc, char **argv)
{
    ls_checkpoint *c = NULL;
    if (argc != 3) {
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    LS_CHECK(
        ls_checkpoint_new(argv[1], ls_world(), LS_OPTIONS(ls_checkpoint_options, .keep = 1), &c));
    LS_CHECK(small_save(c, strtoll(argv[2], NULL, 10)));
    LS_CHECK(ls_checkpoint_free(c));
    LS_CHECK(ls_finalize());
    return 0;
}
