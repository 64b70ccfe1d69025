/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: parameters, buffers and children under names, and a forward function (torch.nn.Module).
 *
 * Your own module is a struct whose first member is ls_module:
 *     typedef struct { ls_module base; ls_module *fc1, *fc2; } mlp;
 *     static const ls_module_class mlp_class =
 *         LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);
 *     mlp *m = ls_module_new(sizeof *m, &mlp_class);
 *     m->fc1 = ls_module_add(&m->base, "fc1", ls_linear_new(784, 256, NULL));
 * Freeing a module frees its children and parameters. A constructor that fails returns NULL with
 * ls_error_message set. Adding a NULL child with ls_module_add marks the parent as failed, which
 * ls_module_status reports, so a constructor needs only one check at its end. Nothing in this
 * header is collective, except ls_clip_grad_norm with a group, with sharded parameters or with
 * ls_ddp_options.zero.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/autograd.h>
#include <lockstep/comm.h>
#include <lockstep/vision.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_module ls_module;
typedef struct ls_parts ls_parts;

/* The functions of a kind of module. Exactly one of the two forward functions is set: `forward` for
 * one input and one output, `forward_many` for every other number. */
typedef struct ls_module_class {
    size_t size; /* LS_MODULE_CLASS sets it */
    const char *name;
    ls_tensor *(*forward)(ls_module *self, ls_tensor *x);
    /* Fills outputs[output_count], or returns an error (ls_fail), for example for a wrong number of
     * inputs or outputs. An input that the caller omits is NULL. */
    ls_status (*forward_many)(ls_module *self, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count);
    void (*free)(ls_module *self); /* frees the module's other resources; NULL: none */
    /* state beyond parameters and buffers; NULL: none */
    ls_status (*state)(ls_module *self, const char *prefix, const ls_state_visitor *visitor);
    void (*parts)(ls_module *self,
                  ls_parts *parts); /* declares its parts, see parts.h; NULL: one */
    const char *plan;               /* for ls_tensor_parallel, see tensor_parallel.h; NULL: none */
} ls_module_class;
/* The initialiser of a class: LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward). */
#define LS_MODULE_CLASS(...)                                                                       \
    {                                                                                              \
        .size = sizeof(ls_module_class), __VA_ARGS__                                               \
    }

/* Public only so that it can be the first member of your struct; use the functions below. */
struct ls_module {
    const ls_module_class *cls;
    struct ls__module_entries *entries; /* parameters, buffers, children in order of addition */
    bool training;
    ls_status status; /* first failure while building */
};

/* Allocates `bytes` (zeroed) and initialises the ls_module at their beginning. `cls` is borrowed
 * while the module lives. NULL on failure: out of memory, or the class has no size, name or forward
 * function. */
LS_API void *ls_module_new(size_t bytes, const ls_module_class *cls);
LS_API void ls_module_free(ls_module *module); /* also frees the children; NULL is allowed */
/* LS_OK, or the first failure while the module was built. */
LS_API ls_status ls_module_status(const ls_module *module);

/* Adds `child`, which the parent then owns, and returns it. The name (copied) must not contain a
 * dot; a wrapper uses "", so that names below it are the same as without the wrapper. */
LS_API ls_module *ls_module_add(ls_module *parent, const char *name, ls_module *child);
/* Adds `value` (contiguous, float32 or bfloat16) as a parameter: the module keeps it and makes it
 * require gradients. Returns the parameter. A buffer may have any dtype and requires no gradients.
 * An unsuitable tensor (NULL, wrong dtype, not contiguous) marks the module as failed;
 * ls_module_status reports it. */
LS_API ls_tensor *ls_module_add_param(ls_module *module, const char *name, ls_tensor *value);
LS_API ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *value);
/* Whether ls_module_state, and with it checkpoints and files of weights, contain a buffer (torch's
 * persistent = False); new ones they do. `name` is as for ls_module_buffer: a module may say so of
 * its own buffers, or of a layer's. Tables that follow from the options, such as masks and
 * positions, need not be saved, and a model with another context length takes the same weights
 * then. Wrappers broadcast them, and ls_module_hash counts them, all the same. LS_ERR_INVALID:
 * there is no such buffer. */
LS_API ls_status ls_module_set_persistent(ls_module *module, const char *name, bool persistent);

/* The number of children, and child number i with its name, in order of addition; NULL if i is out
 * of range. Borrowed. */
LS_API int ls_module_child_count(const ls_module *module);
LS_API ls_module *ls_module_child_at(const ls_module *module, int i);
LS_API const char *ls_module_child_name(const ls_module *module, int i);
/* Finds a part by its dotted name, as in ls_param: ls_module_child(net, "layers.0.fc1"),
 * ls_module_param(net, "layers.0.fc1.weight"). Names are the same with and without a wrapper
 * (ls_ddp_new). Borrowed; NULL with LS_ERR_INVALID, which names the first part that does not
 * exist. */
LS_API ls_module *ls_module_child(const ls_module *module, const char *name);
LS_API ls_tensor *ls_module_param(const ls_module *module, const char *name);
LS_API ls_tensor *ls_module_buffer(const ls_module *module, const char *name);

/* Runs the module's forward function. A poisoned tensor on failure. */
LS_API ls_tensor *ls_forward(ls_module *module, ls_tensor *x);
/* The same with 1 to LS_CALL_TENSORS_MAX inputs and outputs. A class with `forward` accepts one
 * input and one output. After an error, which includes a poisoned output, outputs[] are poisoned
 * tensors, so the status may be checked later. */
LS_API ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                                 ls_tensor **outputs, int output_count);
/* A loss of a layer in the middle of a model (of a gate, of sparsity, of an early exit): the
 * layer's forward sets it, a scalar in the graph, or NULL for none. ls_module_loss is the sum over
 * `module` and all below it of those of their last forwards, with the gates' of ls_moe_new; a
 * tensor of 0 without any. Add it to the loss before ls_backward; ls_pipeline_backward adds those
 * of its stages itself. The tensors of a recomputed function end with it: there the loss is an
 * output of the function, and is set outside. LS_ERR_INVALID: NULL, or more than one element;
 * LS_ERR_STALE: its scope has ended. */
LS_API ls_status ls_module_set_loss(ls_module *module, ls_tensor *loss);
LS_API ls_tensor *ls_module_loss(ls_module *module);

/* ls_forward(module, x) whose activations are not kept but computed again in backward: it saves
 * memory for the time of a second forward pass. Gradients are bitwise identical; see
 * ls_recompute_call in autograd.h. Use it for the blocks of a deep network and not for the whole
 * network, because all activations of one part are in memory while backward passes it. Do not call
 * ls_module_train between this call and ls_backward. */
LS_API ls_tensor *ls_recompute(ls_module *module, ls_tensor *x);
/* The same for ls_forward_many. */
LS_API ls_status ls_recompute_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                                   ls_tensor **outputs, int output_count);
/* Add hooks that run before a module's forward function, with outputs NULL and output_count 0, or
 * after it (register_forward_pre_hook, register_forward_hook). A hook may replace inputs (before)
 * or outputs (after). Its error becomes the error of the forward pass. Hooks run again when
 * ls_recompute runs the module again; ls_recomputing() is true then. NULL with the error set on
 * failure. */
typedef ls_status (*ls_forward_hook_fn)(void *arg, ls_module *module, ls_tensor **inputs,
                                        int input_count, ls_tensor **outputs, int output_count);
LS_API ls_hook *ls_forward_pre_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg);
LS_API ls_hook *ls_forward_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg);

/* Sets training or evaluation mode of the module and its children; new modules are in training
 * mode. */
LS_API void ls_module_train(ls_module *module, bool training);

typedef struct ls_param {
    const char *name; /* "layers.0.fc1.weight"; valid while the module lives */
    ls_tensor *value; /* borrowed */
} ls_param;
/* The number of distinct parameters; a shared one counts once, under its first name. */
LS_API int ls_module_param_count(ls_module *module);
/* Fills at most out[count] in order of addition; returns the number of parameters. */
LS_API int ls_module_params(ls_module *module, ls_param *out, int count);
LS_API int64_t ls_module_numel(ls_module *module); /* number of elements of all parameters */

/* Chooses among the parameters of a module (ls_optim_add_group): true selects the one called
 * `name`, as in ls_param. */
typedef bool (*ls_select_fn)(void *arg, const char *name, const ls_tensor *param);
/* Selects parameters with fewer than two dimensions: biases, and the scales and shifts of norms.
 * `arg` is not used. */
LS_API bool ls_select_vectors(void *arg, const char *name, const ls_tensor *param);

/* Passes parameters, buffers and the classes' further state to the visitor, under dotted names that
 * begin with `prefix` (state.h). */
LS_API ls_status ls_module_state(ls_module *module, const char *prefix,
                                 const ls_state_visitor *visitor);

/* A 64-bit hash of the names and bytes of all parameters and buffers; 0 if they cannot be read. */
LS_API uint64_t ls_module_hash(ls_module *module);

/* Weight-only quantization for inference: from now on ls_linear and the layers made of it read the
 * matrices of the module in fewer bits, and so in a fraction of the time where x has few rows, as
 * in generation. `weights` is LS_INT8 (symmetric, a scale for each output: an element is off by
 * 1/254 of the largest of its row at most), LS_BFLOAT16, or LS_FLOAT32 for the weights as they are.
 * x, sums and results stay float32, also under autocast.
 *
 * The parameters keep their float32 values, which are saved, hashed and looked up (ls_embedding, of
 * a table that is also the head, too); each matrix is rounded when a product first reads it, and
 * again after its values have changed, other than through a pointer of ls_data. The copies take a
 * quarter or a half of the weights' memory in addition. Of ls_lstm and ls_gru the products with the
 * inputs are affected, those with the state are not; nor are products by ls_matmul, convolutions,
 * and the experts of a mixture but those that all tokens visit. ls_linear refuses such weights
 * where gradients are recorded (LS_ERR_STATE): compute under LS_NO_GRAD. LS_ERR_INVALID for another
 * type, or NULL. */
LS_API ls_status ls_module_quantize(ls_module *module, ls_dtype weights);

/* ---- layers; parameters, names, shapes and initial distributions as in PyTorch ------------- */

typedef struct ls_linear_options {
    size_t size;
    bool bias;
    ls_activation activation; /* applied to the result; see ls_linear_activation; default none */
} ls_linear_options;
#define LS_DEFAULTS_ls_linear_options .bias = true,
LS_DEFAULTS_FUNCTION(linear)
/* x [..,in] -> [..,out]: weight [out,in], bias [out], both U(-1/sqrt(in), 1/sqrt(in)). */
LS_API ls_module *ls_linear_new(int64_t in, int64_t out, const ls_linear_options *options);

/* x [..] int32 or int64 -> [..,dim]: weight [count,dim], N(0,1). */
LS_API ls_module *ls_embedding_new(int64_t count, int64_t dim);

typedef struct ls_layer_norm_options {
    size_t size;
    double eps;
    bool affine;
} ls_layer_norm_options;
#define LS_DEFAULTS_ls_layer_norm_options .eps = 1e-5, .affine = true,
LS_DEFAULTS_FUNCTION(layer_norm)
/* x [..,dim] -> the same shape: weight [dim] of ones and bias [dim] of zeros, if `affine`. */
LS_API ls_module *ls_layer_norm_new(int64_t dim, const ls_layer_norm_options *options);

/* x [..,dim] -> the same shape: weight [dim] of ones (torch.nn.RMSNorm). */
LS_API ls_module *ls_rms_norm_new(int64_t dim, double eps);
LS_API ls_module *ls_dropout_new(double p); /* identity in evaluation */
LS_API ls_module *ls_relu_new(void);
LS_API ls_module *ls_gelu_new(ls_gelu_kind kind);
/* x [B,T,in] -> [B,T,hidden]: `layers` stacked layers of long short-term memory, each of which
 * starts from a state of zeros (torch.nn.LSTM with batch_first). weight_ih_l0 [4 hidden,in],
 * weight_hh_l0 [4 hidden,hidden], bias_ih_l0 and bias_hh_l0 [4 hidden], _l1 …: U(-1/sqrt(hidden),
 * 1/sqrt(hidden)). To pass a state from one sequence to the next, use ls_lstm. */
LS_API ls_module *ls_lstm_new(int64_t in, int64_t hidden, int layers);
/* The same with gated recurrent units (torch.nn.GRU with batch_first), whose matrices have [3
 * hidden,..] and whose biases have [3 hidden]; see ls_gru. */
LS_API ls_module *ls_gru_new(int64_t in, int64_t hidden, int layers);
LS_API ls_module *ls_flatten_new(void); /* [N,..] -> [N,D] */
/* Returns its input (torch.nn.Identity). It is a placeholder in a sequence, so that later layers
 * keep their names when the previous layer includes its activation. */
LS_API ls_module *ls_identity_new(void);
/* Runs children[count] in order (torch.nn.Sequential) and owns them; their names are "0", "1", ….
 * The array is copied. ls_module_status reports a NULL child. */
LS_API ls_module *ls_sequential_new(ls_module **children, int count);

/* ---- layers of images [N,C,H,W], see vision.h ---------------------------------------------- */

typedef struct ls_conv2d_layer_options {
    size_t size;
    int64_t stride, padding, dilation, groups; /* for both axes */
    bool bias;
    bool relu; /* applies a ReLU to the result, in one pass */
} ls_conv2d_layer_options;
#define LS_DEFAULTS_ls_conv2d_layer_options .stride = 1, .dilation = 1, .groups = 1, .bias = true,
LS_DEFAULTS_FUNCTION(conv2d_layer)
/* x [N,in,H,W] -> [N,out,H',W'], see ls_conv2d: weight [out,in/groups,kernel,kernel], bias [out]:
 * U(-b, b), b = 1/sqrt(in/groups * kernel^2). */
LS_API ls_module *ls_conv2d_new(int64_t in, int64_t out, int64_t kernel,
                                const ls_conv2d_layer_options *options);
/* x [N,channels,H,W], or [N,channels] or [N,channels,L] (torch's BatchNorm1d), -> the same shape:
 * statistics of each channel over all other dimensions. Parameters weight (1) and bias (0)
 * [channels]; buffers running_mean (0) and running_var (1) [channels], num_batches_tracked (int64,
 * a scalar). PyTorch's defaults are eps 1e-5 and momentum 0.1. */
LS_API ls_module *ls_batch_norm2d_new(int64_t channels, double eps, double momentum);
/* ls_relu(ls_add(ls_forward(layer, x), residual)) in one pass over memory; residual NULL: none.
 * `layer` must be one that ls_batch_norm2d_new made. */
LS_API ls_tensor *ls_batch_norm2d_relu(ls_module *layer, ls_tensor *x, ls_tensor *residual);
/* From now on all batch norm layers of `net` train with the statistics of the batches of all ranks
 * of `group` (torch.nn.SyncBatchNorm.convert_sync_batchnorm; Ioffe & Szegedy 2015 over the union of
 * the ranks' elements): outputs, gradients and running statistics are those of one process with the
 * concatenated batch, for x [N,C,..] of float32 or bfloat16 in either layout. N and the image may
 * differ from rank to rank, and N may be 0: a rank counts by its elements. Running statistics have
 * the same bits on all ranks. Gradients of weight and bias are sums over this rank's elements, as
 * without it, for ls_ddp_new to average. Evaluation uses the running statistics and exchanges
 * nothing.
 *
 *     LS_CHECK(ls_sync_batch_norm_convert(net, ls_world()));
 *     net = ls_ddp_new(net, ls_world(), NULL);
 *
 * Collective, and so are from then on every training forward of such a layer, backward through it
 * (an all_gather of 2 channels + 1, and one of 2 channels, float64) and freeing the model: all
 * ranks run the same layers in the same order, those without data on an empty batch. The group is
 * duplicated. A group of one rank, and a model without batch norm, change nothing; converting again
 * takes the new group. LS_ERR_INVALID for NULL; LS_ERR_STATE for a model that is wrapped already.
 * ls_ddp_options.shards and ls_ddp_join are refused with it. A backward of weight 0 gives
 * the gradients of what this rank's samples are to the statistics in the losses of the others. */
LS_API ls_status ls_sync_batch_norm_convert(ls_module *net, ls_group *group);
/* See ls_max_pool2d, ls_avg_pool2d and ls_adaptive_avg_pool2d; the same numbers for both axes. */
LS_API ls_module *ls_max_pool2d_new(int64_t kernel, int64_t stride, int64_t padding);
LS_API ls_module *ls_avg_pool2d_new(int64_t kernel, int64_t stride, int64_t padding);
LS_API ls_module *ls_adaptive_avg_pool2d_new(int64_t height, int64_t width);

typedef struct ls_conv1d_layer_options {
    size_t size;
    int64_t stride, padding, dilation, groups;
    bool bias;
} ls_conv1d_layer_options;
#define LS_DEFAULTS_ls_conv1d_layer_options .stride = 1, .dilation = 1, .groups = 1, .bias = true,
LS_DEFAULTS_FUNCTION(conv1d_layer)
/* x [N,in,L] -> [N,out,L'], see ls_conv1d: weight [out,in/groups,kernel], bias [out]: U(-b, b), b =
 * 1/sqrt(in/groups * kernel). */
LS_API ls_module *ls_conv1d_new(int64_t in, int64_t out, int64_t kernel,
                                const ls_conv1d_layer_options *options);

typedef struct ls_conv_transpose2d_layer_options {
    size_t size;
    int64_t stride, padding, output_padding, dilation, groups; /* for both axes */
    bool bias;
} ls_conv_transpose2d_layer_options;
#define LS_DEFAULTS_ls_conv_transpose2d_layer_options                                              \
    .stride = 1, .dilation = 1, .groups = 1, .bias = true,
LS_DEFAULTS_FUNCTION(conv_transpose2d_layer)
/* x [N,in,H,W] -> [N,out,H',W'], see ls_conv_transpose2d: weight [in,out/groups,kernel,kernel],
 * bias [out]: U(-b, b), b = 1/sqrt(out/groups * kernel^2). */
LS_API ls_module *ls_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel,
                                          const ls_conv_transpose2d_layer_options *options);
LS_API ls_module *ls_upsample_new(const ls_upsample_options *options); /* see ls_upsample */

typedef struct ls_group_norm_options {
    size_t size;
    double eps;
    bool affine; /* weight (1) and bias (0) [channels] */
} ls_group_norm_options;
#define LS_DEFAULTS_ls_group_norm_options .eps = 1e-5, .affine = true,
LS_DEFAULTS_FUNCTION(group_norm)
/* x [N,channels,..] -> the same shape, see ls_group_norm. */
LS_API ls_module *ls_group_norm_new(int64_t groups, int64_t channels,
                                    const ls_group_norm_options *options);

/* ---- initialisation ----------------------------------------------------------------------- */

/* These functions fill a tensor in place. Element i of a parameter is number i of a random stream
 * (random.h) that depends on the seed and on the parameter's name in the model, as ls_module_params
 * gives it: fnv1a64("blocks.3.qkv.weight") modulo 2^62. So the values do not depend on the other
 * parameters that a rank has made: layers 3 to 5 of a model, under the same names, are equal to
 * those of the whole model. Two models of one seed whose parameters have the same names and shapes
 * begin equally; for two that differ, change the seed in between (ls_manual_seed) or give them a
 * common parent. A second fill of a parameter draws the same numbers again.
 *
 * The name is complete only when the model is, so values are drawn when they are first used; the
 * seed is that of the time of the fill. If a program reads the values of a layer before it adds the
 * layer to a parent, the name at that time counts. A parameter that several modules share has the
 * name under which it was added first. A tensor that is not a parameter when its values are first
 * used gets the next of the runtime's streams, in the order of the fills. */

LS_API ls_status ls_fill_uniform(ls_tensor *t, double low, double high);
LS_API ls_status ls_fill_normal(ls_tensor *t, double mean, double std);
LS_API ls_status ls_fill_constant(ls_tensor *t, double value);
/* N(0, variance 2/fan), for layers followed by a ReLU (He et al. 2015). For a weight [out,in,..]
 * `fan` is the number of inputs of an output, or with fan_out the number of outputs of an input. */
LS_API ls_status ls_fill_kaiming_normal(ls_tensor *weight, bool fan_out);

/* LS_SKIP_INIT(true); (torch.nn.utils.skip_init): until the end of the block, layers are made
 * without drawing random values for them; ls_fill_uniform, _normal and _kaiming_normal leave a
 * tensor unchanged. Use it for layers whose values come from a model's own initialisation or from a
 * file:
 *     {
 *         LS_SKIP_INIT(path != NULL);
 *         net = ls_gpt2_new(NULL);
 *     }
 * Drawing takes most of the time until a large model is ready. Constants are still set. The mode
 * belongs to the thread; blocks nest, and false keeps the mode of the enclosing block. A
 * declaration, like LS_SCOPE. */
LS_API bool ls_set_skip_init(bool skip); /* returns the previous mode of this thread */
#if defined(__GNUC__)
static inline bool ls_skip_init_enter_(bool skip)
{
    const bool before = ls_set_skip_init(true);
    (void)ls_set_skip_init(before || skip);
    return before;
}
static inline void ls_skip_init_cleanup_(const bool *before)
{
    (void)ls_set_skip_init(*before);
}
#define LS_SKIP_INIT(skip)                                                                         \
    const bool LS_ON_LINE(ls_skip_init_before_) LS_UNTIL_END_(ls_skip_init_cleanup_) =             \
        ls_skip_init_enter_(skip)
#endif

typedef struct ls_clip_grad_norm_options {
    size_t size;
    ls_group *group; /* of ranks that hold different parameters of one model (tensor, pipeline or
                        expert parallel): the norm is that of the gradients of all of them. NULL:
                        this rank holds all parameters, as with data parallelism, or its part of
                        each (ls_tensor_shard, ls_ddp_options.zero) */
    ls_select_fn replicated; /* selects, on ranks other than 0, the parameters that count on another
                                rank of `group`, which holds them with equal gradients: those of
                                all ranks count on rank 0. Called in every call. NULL: none */
    void *arg;               /* of `replicated` */
} ls_clip_grad_norm_options;
#define LS_DEFAULTS_ls_clip_grad_norm_options
LS_DEFAULTS_FUNCTION(clip_grad_norm)

/* Scales all gradients of the module, float32 and bfloat16, so that their common 2-norm is at most
 * max_norm (torch's clip_grad_norm_); *norm (may be NULL) becomes the norm before scaling. Call it
 * after ls_backward has averaged the gradients. With options->group it is collective over the group
 * (one all_reduce of 8 bytes), and the norm has the same bits on all its ranks; give all the same
 * max_norm. Parameters that are sharded along axes of the mesh in force count once with all their
 * parts: the call is then collective over these axes, too, except those within options->group
 * (an all_gather of at most 2 KiB a rank along each; LS_ERR_STATE under another mesh than theirs).
 * A NaN or infinite norm is LS_ERR_INVALID, on all ranks, and changes nothing; the text names the
 * parameter. With max_norm INFINITY nothing is scaled, and the call is the check that a training
 * loop without clipping needs before ls_optim_step: LS_CHECK it, or zero the gradients and go on to
 * the next batch. It reads each gradient once. */
LS_API ls_status ls_clip_grad_norm(ls_module *module, double max_norm,
                                   const ls_clip_grad_norm_options *options, double *norm);

#if !defined(LS_NO_SITES)
#define ls_forward(...) LS_AT(ls_forward(__VA_ARGS__))
#define ls_forward_many(...) LS_AT(ls_forward_many(__VA_ARGS__))
#define ls_module_loss(...) LS_AT(ls_module_loss(__VA_ARGS__))
#define ls_clip_grad_norm(...) LS_AT(ls_clip_grad_norm(__VA_ARGS__))
#define ls_recompute(...) LS_AT(ls_recompute(__VA_ARGS__))
#define ls_recompute_many(...) LS_AT(ls_recompute_many(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
