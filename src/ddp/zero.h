/* What training keeps, divided among the ranks (ZeRO); see zero.c. */
#ifndef LS_DDP_ZERO_H
#define LS_DDP_ZERO_H

#include <lockstep/ddp.h>

struct ls__ddp;

typedef struct ls__ddp_zero {
    int stage;       /* ls_ddp_options.zero */
    int buckets;     /* 0: everything is whole, as long as the layout may change */
    bool *changed;   /* [buckets] an optimizer has stepped a parameter of it … */
    ls_work **works; /* [buckets] … which the ranks now gather */
} ls__ddp_zero;

/* Checks what zero is combined with. After the reducer was made; on all ranks alike. */
ls_status ls__ddp_zero_init(struct ls__ddp *d, const ls_ddp_options *options);
/* The layout is final, and gradients are whole averages: from now on both are divided. */
ls_status ls__ddp_zero_begin(struct ls__ddp *d);
/* Gathers the parameters that were stepped. Collective. */
ls_status ls__ddp_zero_share(struct ls__ddp *d);
void ls__ddp_zero_drop(struct ls__ddp *d);

#endif
