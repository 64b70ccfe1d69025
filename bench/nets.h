/* SPDX-License-Identifier: Apache-2.0 */
/* Networks of models/ by name, at the sizes they are measured with: by `lockstep bench step`, and
 * beside PyTorch by `make compare-training`. Public headers only.
 *
 * Weights and batches are a formula of a name and an index, that of tests/reference, which
 * training/contender_torch.py has too: both sides compute the same.
 */
#ifndef LS_BENCH_NETS_H
#define LS_BENCH_NETS_H

#include <lockstep/lockstep.h>

typedef enum net_input {
    NET_VECTORS, /* x [B,dim0] float32 -> y [B] classes */
    NET_IMAGES,  /* x [B,dim0,dim1,dim2] float32 -> y [B] */
    NET_TOKENS,  /* x [B,dim0] tokens -> y [B,dim0] */
    NET_MASKED,  /* the same; of seven targets one is asked for, the others are -100 */
} net_input;

typedef struct net {
    const char *name, *about; /* "gpt", "GPT 6 layers, d 384, T 256, V 8192" */
    ls_module *(*build)(void);
    net_input input;
    int64_t batch; /* unless another is asked for */
    int64_t dim[3];
    int64_t classes; /* tokens, too, are below it */
    bool sgd;        /* trained with momentum, as image networks are; else AdamW */
} net;

/* NULL: there is none of that name. */
const net *net_find(const char *name);
/* The i-th; NULL after the last. */
const net *net_at(int i);

typedef struct net_run { /* a network in training, always on the same batch */
    const net *net;
    ls_module *model;
    ls_optim *optim;
    ls_tensor *x, *y;
    bool bfloat16; /* products in bfloat16 (ls_autocast), weights in float32 */
} net_run;

/* Builds all of it. `formula`: parameters by the formula, else as the model initialises itself.
 * After a failure, too, net_close frees what there is. */
ls_status net_open(net_run *run, const net *n, int64_t batch, bool formula);
/* All but the optimizer, for models that are distributed before they have one. */
ls_status net_open_model(net_run *run, const net *n, int64_t batch, bool formula);
void net_close(net_run *run);
/* The optimizer with which it is trained; NULL on failure. */
ls_optim *net_optim(const net *n, ls_module *model);
/* The loss of the batch, in the caller's scope. */
ls_tensor *net_loss(const net_run *run);
/* Zeroes gradients, forward, loss, backward, update. */
ls_status net_step(net_run *run, double *loss);

#endif
