/* Judging a language model of bytes: its loss on held-out text, and a sample of what it writes. */
#ifndef EXAMPLES_TEXT_EVAL_H
#define EXAMPLES_TEXT_EVAL_H

#include <lockstep/lockstep.h>

/* Mean negative log-likelihood in nats a byte over all files of `text`, each byte but a file's
 * first scored once, with at least context/2 bytes before it where the file has them. The windows
 * are shared among the ranks of `group`; all get the same number. Collective. `net` maps [B,T]
 * tokens to [B,T,256] logits and is left in training mode. */
ls_status text_loss(ls_module *net, const ls_dataset *text, int64_t context, ls_group *group,
                    double *loss);

typedef struct text_prompt {
    const char
        *text; /* the sample goes on from here; of a long one the last context-1 bytes count */
    double temperature; /* logits are divided by it: below 1 probable bytes become more probable */
    uint64_t seed;
} text_prompt;

/* Writes out[count]: bytes drawn from the model one after another, behind the prompt. Local. */
ls_status text_sample(ls_module *net, int64_t context, const text_prompt *prompt, uint8_t *out,
                      int64_t count);

#endif
