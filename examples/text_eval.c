/* Held-out loss by overlapping windows:
 *
 *     window 0  [============]            all of it is scored
 *     window 1        [------======]      stride = context/2: only the second half is scored,
 *     window 2              [------====]  with the first half as what the model may look at
 *
 * No graph is recorded and no wrapper is involved: evaluation is a forward pass of the plain
 * module. The log-likelihood is summed in float64 on the host, and over the ranks by one
 * all_reduce.
 */
#include "text_eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 256
#define EVAL_BATCH 16

typedef struct window {
    const uint8_t *text; /* inputs text[0…length), targets text[1…length] */
    int64_t length;
    int64_t from; /* first target that is scored */
} window;

/* Walks over the windows of all files. */
typedef struct walk {
    const ls_dataset *text;
    int64_t context, stride;
    int file;
    int64_t start, done; /* in the file: the window's first byte; targets scored so far */
} walk;

static bool next_window(walk *at, window *out)
{
    for (; at->file < ls_text_files(at->text); at->file++, at->start = at->done = 0) {
        int64_t bytes;
        const uint8_t *text = ls_text_file(at->text, at->file, &bytes);
        int64_t targets = bytes - 1;
        if (at->done < targets) {
            int64_t end = at->start + at->context;
            end = end < targets ? end : targets;
            *out = (window){text + at->start, end - at->start, at->done - at->start};
            at->done = end;
            at->start += at->stride;
            return true;
        }
    }
    return false;
}

static double log_sum_exp(const float *x, int64_t n)
{
    double most = x[0], sum = 0.0;
    for (int64_t i = 1; i < n; i++) {
        most = x[i] > most ? x[i] : most;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(x[i] - most);
    }
    return most + log(sum);
}

/* Adds the scored targets of one batch of windows to sums: {nats, bytes}. */
static ls_status score(ls_module *net, const window *windows, int count, int64_t context,
                       int32_t *tokens, double sums[2])
{
    memset(tokens, 0, (size_t)(count * context) * sizeof *tokens);
    for (int w = 0; w < count; w++) {
        for (int64_t i = 0; i < windows[w].length; i++) {
            tokens[w * context + i] = windows[w].text[i];
        }
    }
    ls_status status = LS_OK;
    {
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *x = ls_from_memory(tokens, LS_SHAPE(count, context), LS_INT32);
        ls_tensor *y = ls_contiguous(ls_forward(net, x)); /* [count,context,256] */
        const float *logits = ls_data(y);
        status = ls_tensor_status(y);
        for (int w = 0; status == LS_OK && w < count; w++) {
            for (int64_t i = windows[w].from; i < windows[w].length; i++) {
                const float *row = logits + (w * context + i) * BYTES;
                sums[0] += log_sum_exp(row, BYTES) - row[windows[w].text[i + 1]];
                sums[1] += 1.0;
            }
        }
    }
    return status;
}

/* Every world_size-th window is this rank's. */
static ls_status score_all(ls_module *net, walk *at, const ls_group *group, int32_t *tokens,
                           double sums[2])
{
    window mine[EVAL_BATCH];
    int held = 0, rank = ls_group_rank(group), size = ls_group_size(group);
    for (int64_t i = 0; next_window(at, &mine[held]); i++) {
        if (i % size != rank) {
            continue;
        }
        if (++held == EVAL_BATCH) {
            LS_TRY(score(net, mine, held, at->context, tokens, sums));
            held = 0;
        }
    }
    return held ? score(net, mine, held, at->context, tokens, sums) : LS_OK;
}

ls_status text_loss(ls_module *net, const ls_dataset *text, int64_t context, ls_group *group,
                    double *loss)
{
    walk at = {.text = text, .context = context, .stride = context > 1 ? context / 2 : 1};
    double sums[2] = {0.0, 0.0};
    int32_t *tokens = calloc((size_t)(EVAL_BATCH * context), sizeof *tokens);
    if (!tokens) {
        return LS_ERR_MEMORY;
    }
    ls_module_train(net, false);
    ls_status status = score_all(net, &at, group, tokens, sums);
    ls_module_train(net, true);
    free(tokens);
    LS_TRY(status);
    LS_TRY(ls_all_reduce(group, sums, 2, LS_FLOAT64, LS_SUM,
                         LS_OPTIONS(ls_collective_options, .tag = "held-out loss"), NULL));
    *loss = sums[1] > 0.0 ? sums[0] / sums[1] : 0.0;
    return LS_OK;
}

/* ---- a sample ----------------------------------------------------------------------------- */

/* The byte at `uniform` in [0,1) of the probability; `logits` are divided in place. */
static uint8_t draw(float *logits, double temperature, double uniform)
{
    for (int b = 0; b < BYTES; b++) {
        logits[b] = (float)(logits[b] / temperature);
    }
    double total = log_sum_exp(logits, BYTES), below = 0.0;
    for (int b = 0; b < BYTES; b++) {
        below += exp(logits[b] - total);
        if (uniform < below) {
            return (uint8_t)b;
        }
    }
    return BYTES - 1;
}

/* What the model expects after tokens[length]. */
static ls_status next_logits(ls_module *net, int32_t *tokens, int64_t length, float out[BYTES])
{
    ls_status status = LS_OK;
    {
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *x = ls_from_memory(tokens, LS_SHAPE(1, length), LS_INT32);
        ls_tensor *y = ls_contiguous(ls_forward(net, x)); /* [1,length,256] */
        const float *logits = ls_data(y);
        status = ls_tensor_status(y);
        if (status == LS_OK) {
            memcpy(out, logits + (length - 1) * BYTES, BYTES * sizeof *out);
        }
    }
    return status;
}

/* The last bytes of the prompt that leave room for one more; a line's start where there are none. */
static int64_t begin(int32_t *tokens, int64_t context, const char *prompt)
{
    int64_t given = (int64_t)strlen(prompt), room = context > 1 ? context - 1 : 1;
    int64_t length = given < room ? given : room;
    for (int64_t i = 0; i < length; i++) {
        tokens[i] = (uint8_t)prompt[given - length + i];
    }
    tokens[0] = length ? tokens[0] : '\n';
    return length ? length : 1;
}

ls_status text_sample(ls_module *net, int64_t context, const text_prompt *prompt, uint8_t *out,
                      int64_t count)
{
    int32_t *tokens = calloc((size_t)context, sizeof *tokens);
    if (!tokens) {
        return LS_ERR_MEMORY;
    }
    int64_t length = begin(tokens, context, prompt->text);
    ls_status status = LS_OK;
    ls_module_train(net, false);
    for (int64_t i = 0; status == LS_OK && i < count; i++) {
        float logits[BYTES];
        status = next_logits(net, tokens, length, logits);
        if (status == LS_OK) {
            out[i] =
                draw(logits, prompt->temperature, ls_random_uniform(prompt->seed, 0, (uint64_t)i));
        }
        if (length == context) {
            memmove(tokens, tokens + 1, (size_t)(context - 1) * sizeof *tokens);
            length--;
        }
        tokens[length++] = out[i];
    }
    ls_module_train(net, true);
    free(tokens);
    return status;
}
