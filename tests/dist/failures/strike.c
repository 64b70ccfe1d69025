/* SPDX-License-Identifier: Apache-2.0 */
/* A fault at a random moment. */
#include "strike.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "processes.h"

const char *const way_names[WAYS] = {"killed", "stopped", "wrong"};

int draw(uint64_t *dice, int below)
{
    *dice = *dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((*dice >> 33) % (uint64_t)below);
}

strike strike_draw(uint64_t *dice, way how)
{
    strike s = {.how = how, .ranks = 2 + draw(dice, 5)};
    s.victim = draw(dice, s.ranks);
    s.after_ms = draw(dice, 80);
    return s;
}

void strike_on_line(job *j, const char *line)
{
    strike *s = j->arg;
    s->ready += strstr(line, "READY") != NULL;
    if (s->how == MISMATCH || s->ready != s->ranks || j->struck != 0.0) {
        return;
    }
    usleep((useconds_t)s->after_ms * 1000u);
    j->struck = process_seconds();
    kill(j->pid[s->victim], s->how == KILL ? SIGKILL : SIGSTOP);
}
