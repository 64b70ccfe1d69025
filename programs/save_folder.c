/* SPDX-License-Identifier: Apache-2.0 */
/* See save_folder.h. ls_checkpoint_save would refuse, too, but only at the first save: hours later,
 * and when run.json has been replaced. */
#include "save_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <lockstep/lockstep.h>

#include "common.h"

#define STEP "step-" /* names of checkpoints, <lockstep/checkpoint.h> */

bool save_folder_is(const char *save, const char *resume)
{
    struct stat a, b;
    if (save == NULL || resume == NULL) {
        return false;
    }
    return strcmp(save, resume) == 0 || (stat(save, &a) == 0 && stat(resume, &b) == 0 &&
                                         a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

/* -1: the name of something else, as of a checkpoint that is still being written. */
static int64_t step_of(const char *name)
{
    char *end = NULL;
    const size_t length = strlen(STEP);
    if (strncmp(name, STEP, length) != 0 || name[length] < '0' || name[length] > '9') {
        return -1;
    }
    const long long step = strtoll(name + length, &end, 10);
    return *end == '\0' ? step : -1;
}

/* -1: there is none. */
static int64_t newest(const char *folder)
{
    int64_t found = -1;
    DIR *list = opendir(folder);
    for (struct dirent *e = list != NULL ? readdir(list) : NULL; e != NULL; e = readdir(list)) {
        const int64_t step = step_of(e->d_name);
        found = step > found ? step : found;
    }
    if (list != NULL) {
        (void)closedir(list);
    }
    return found;
}

void save_folder_must_take(const char *save, int64_t start)
{
    int64_t step = ls_rank() == 0 ? newest(save) : -1;
    must(ls_broadcast(ls_world(), &step, 1, LS_INT64, 0,
                      LS_OPTIONS(ls_collective_options, .tag = "save"), NULL));
    if (step > start) {
        give_up(EXIT_USAGE,
                "--save: \"%s\" holds checkpoints of another run, the newest of step %lld; give "
                "--resume %s to go on from it, or --save another folder",
                save, (long long)step, save);
    }
}
