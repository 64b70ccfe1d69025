/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults of option structs by name, for bindings that cannot call the inline functions of the
 * headers (types.h, Note [Option structs]). tests/tidy keeps the table complete. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/error.h"
#include "base/options.h"

#define OPTION_STRUCTS(X)                                                                          \
    X(adam)                                                                                        \
    X(adamw)                                                                                       \
    X(attention)                                                                                   \
    X(average_replay)                                                                              \
    X(backward_part)                                                                               \
    X(batch_norm)                                                                                  \
    X(checkpoint)                                                                                  \
    X(clip_grad_norm)                                                                              \
    X(collective)                                                                                  \
    X(group)                                                                                       \
    X(conv1d)                                                                                      \
    X(conv1d_layer)                                                                                \
    X(conv2d)                                                                                      \
    X(conv2d_layer)                                                                                \
    X(conv_transpose2d)                                                                            \
    X(conv_transpose2d_layer)                                                                      \
    X(cross_entropy)                                                                               \
    X(ddp)                                                                                         \
    X(ddp_average)                                                                                 \
    X(ddp_join)                                                                                    \
    X(event_log)                                                                                   \
    X(gradcheck)                                                                                   \
    X(group_norm)                                                                                  \
    X(init)                                                                                        \
    X(kl_div)                                                                                      \
    X(layer_norm)                                                                                  \
    X(linear)                                                                                      \
    X(loader)                                                                                      \
    X(moe)                                                                                         \
    X(optim_group)                                                                                 \
    X(outer)                                                                                       \
    X(pipeline)                                                                                    \
    X(pipeline_replay)                                                                             \
    X(pool2d)                                                                                      \
    X(powersgd)                                                                                    \
    X(profile)                                                                                     \
    X(quantize)                                                                                    \
    X(reducer)                                                                                     \
    X(reducer_begin)                                                                               \
    X(rmsprop)                                                                                     \
    X(rotary_scaling)                                                                              \
    X(safetensors)                                                                                 \
    X(sampler)                                                                                     \
    X(schedule)                                                                                    \
    X(server)                                                                                      \
    X(server_replay)                                                                               \
    X(sgd)                                                                                         \
    X(sparse)                                                                                      \
    X(tensor_parallel)                                                                             \
    X(tensor_plan)                                                                                 \
    X(text)                                                                                        \
    X(tokens)                                                                                      \
    X(transform)                                                                                   \
    X(upsample)

ls_status ls_options_defaults(const char *type, void *out)
{
#define FILL(name)                                                                                 \
    if (type != NULL && strcmp(type, "ls_" #name "_options") == 0) {                               \
        const ls_##name##_options defaults = ls_##name##_defaults();                               \
        return ls__struct_fill(out, &defaults, sizeof defaults, type, __func__);                   \
    }
    OPTION_STRUCTS(FILL)
#undef FILL
    return ls__fail(LS_ERR_NOT_FOUND,
                    "ls_options_defaults: '%s' is not an option struct; give a name such as "
                    "ls_collective_options",
                    type != NULL ? type : "(null)");
}
