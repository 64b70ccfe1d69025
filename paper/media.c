/* SPDX-License-Identifier: Apache-2.0 */
/* Media: what carries the data of a measurement. An experiment that was asked for none goes through
 * all that this machine has; a table and notes say which it left out, and why. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/backend/plugin.h"
#include "paper.h"

#define RATE "1gbit" /* of the link, as of the paper's slower network */

/* ---- MPI ------------------------------------------------------------------------------------- */

static const struct {
    const char *plugin, *title, *launcher, *version; /* of `mpirun --version` */
} mpis[] = {{"mpi_openmpi", "Open MPI", "mpirun.openmpi", "Open MPI"},
            {"mpi_mpich", "MPICH", "mpirun.mpich", "HYDRA"}};
enum { MPIS = sizeof mpis / sizeof *mpis };

static bool loads(const char *backend)
{
    ls__plugin plugin;
    if (ls__plugin_load(backend, &plugin) != LS_OK) {
        return false;
    }
    ls__plugin_unload(&plugin, false);
    return true;
}

/* Its mpirun; NULL: there is none. Debian names it after the MPI, others leave it at that. */
static const char *launcher_of(int i)
{
    const char *const named[] = {"sh", "-c", "command -v \"$0\"", mpis[i].launcher, NULL};
    const char *const plain[] = {"sh", "-c", "mpirun --version 2>/dev/null | grep -q \"$0\"",
                                 mpis[i].version, NULL};
    return paper_run(named) == 0 ? mpis[i].launcher : paper_run(plain) == 0 ? "mpirun" : NULL;
}

bool paper_mpi_find(paper_mpi *out, char why[256])
{
    bool any = false;
    for (int i = 0; i < MPIS; i++) {
        const bool usable = loads(mpis[i].plugin);
        const char *launcher = usable ? launcher_of(i) : NULL;
        if (launcher != NULL) {
            *out = (paper_mpi){.title = mpis[i].title, .launcher = launcher, .open_mpi = i == 0};
            return true;
        }
        any = any || usable;
    }
    (void)snprintf(why, 256, "%.250s",
                   any ? "there is no mpirun of the MPI whose plug-in is here"
                       : "no ls_backend_mpi_openmpi.so or ls_backend_mpi_mpich.so can be loaded; "
                         "`lockstep info` says why");
    return false;
}

/* ---- going through them ---------------------------------------------------------------------- */

bool paper_can_link(void)
{
    paper_link link;
    const bool made = paper_link_make(&link, RATE);
    if (made) {
        paper_link_remove(&link);
    }
    return made;
}

const char *paper_note_nccl(paper *p)
{
    if (!loads("nccl")) {
        paper_note(p, "NCCL: skipped: no GPU here: %s.", ls_error_message());
        return "no GPU here";
    }
    paper_note(p,
               "NCCL: skipped: networks here compute on the processor; `make gpu-check` measures "
               "NCCL.");
    return "see make gpu-check";
}

static void skip(paper *p, const char *backend, const char *why)
{
    static const paper_column columns[] = {{"backend", "", NULL}, {"why", "", NULL}};
    if (p->skipped == NULL) {
        p->skipped = paper_table(p, "Not measured", columns, 2);
    }
    paper_row(p->skipped, "[s, s]", backend, why);
}

void paper_skip_nccl(paper *p)
{
    skip(p, "NCCL", paper_note_nccl(p));
}

/* Sets the k-th of all; false after the last. *usable: whether this machine has it. */
static bool set(paper *p, int k, bool *usable)
{
    char why[256];
    p->transport = k == 0 ? "shm" : k == 2 ? "mpi" : NULL;
    p->link = k == 1 ? RATE : NULL;
    *usable = true;
    switch (k) {
    case 0:
        return true;
    case 1:
        *usable = paper_can_link();
        if (!*usable) {
            skip(p, "TCP at 1 Gbit/s", "no link here");
            paper_note(p, "TCP at 1 Gbit/s: skipped: network namespaces cannot be made here; it "
                          "needs root, ip, tc and nsenter.");
        }
        return true;
    case 2:
        *usable = paper_mpi_find(&p->mpi, why);
        if (!*usable) {
            skip(p, "MPI", "no MPI here");
            paper_note(p, "MPI: skipped: %s.", why);
        }
        return true;
    default:
        paper_skip_nccl(p);
        return false;
    }
}

bool paper_next_medium(paper *p)
{
    const paper_options *o = p->options;
    if (o->transport != NULL || o->link != NULL) {
        return p->medium++ == 0;
    }
    if (paper_stopped() || (o->quick && p->medium > 0)) {
        return false;
    }
    if (o->quick) {
        paper_note(p, "Shared memory alone (--quick).");
    }
    bool usable = false;
    while (!usable) {
        if (!set(p, p->medium++, &usable)) {
            p->transport = NULL;
            p->link = NULL;
            return false;
        }
    }
    return true;
}

const char *paper_medium(const paper *p, char out[64])
{
    if (p->link != NULL) {
        (void)snprintf(out, 64, "TCP at %s/s", p->link);
    } else if (p->transport != NULL && strcmp(p->transport, "mpi") == 0) {
        (void)snprintf(out, 64, "MPI (%s)", p->mpi.title);
    } else {
        (void)snprintf(out, 64, "%s",
                       p->transport != NULL && strcmp(p->transport, "tcp") == 0 ? "TCP of one host"
                                                                                : "shared memory");
    }
    return out;
}
