/* Modules: parameters, buffers and children under names, and a forward function (torch.nn.Module).
 *
 * A module of your own is a struct whose first member is ls_module:
 *     typedef struct { ls_module base; ls_module *fc1, *fc2; } mlp;
 *     static const ls_module_class mlp_class = LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);
 *     mlp *m = ls_module_new(sizeof *m, &mlp_class);
 *     m->fc1 = ls_module_add(&m->base, "fc1", ls_linear_new(784, 256, NULL));
 * Freeing a module frees its children and parameters. Constructors that fail return NULL with
 * ls_error_message set; ls_module_add passes a NULL child on as a failure of the parent, which
 * ls_module_status reports, so a constructor needs one check at its end.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/autograd.h>
#include <lockstep/vision.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_module ls_module;

/* What a module can do. Exactly one of the two forward functions is given: `forward` where one
 * tensor goes in and one comes out, `forward_many` for every other number. */
typedef struct ls_module_class {
    size_t size; /* LS_MODULE_CLASS sets it */
    const char *name;
    ls_tensor *(*forward)(ls_module *self, ls_tensor *x);
    /* Fills outputs[output_count], or returns an error (ls_fail) when it does not take this many
     * inputs or give this many outputs. An input that the caller leaves out is NULL. */
    ls_status (*forward_many)(ls_module *self, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count);
    void (*free)(ls_module *self); /* own resources only; NULL: none */
    /* state beyond parameters and buffers; NULL: none */
    ls_status (*state)(ls_module *self, const char *prefix, const ls_state_visitor *visitor);
} ls_module_class;
/* The initialiser of a class: LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward). */
#define LS_MODULE_CLASS(...)                                                                       \
    {                                                                                              \
        .size = sizeof(ls_module_class), __VA_ARGS__                                               \
    }

/* Public only so that it can be the first member of yours; use the functions below. */
struct ls_module {
    const ls_module_class *cls;
    struct ls__module_entries *entries; /* parameters, buffers, children in order of addition */
    bool training;
    ls_status status; /* first failure while building */
};

/* Allocates `bytes` (zeroed) with an initialised base. NULL on failure: memory is out, or the class
 * lacks its size, its name or a forward function. `cls` is borrowed while the module lives. */
LS_API void *ls_module_new(size_t bytes, const ls_module_class *cls);
LS_API void ls_module_free(ls_module *module); /* recursive; NULL is allowed */
LS_API ls_status ls_module_status(const ls_module *module);

/* Takes `child`. The name has no dot; "" is a wrapper's: names below it are as without the wrapper.
 */
LS_API ls_module *ls_module_add(ls_module *parent, const char *name, ls_module *child);
/* Takes `value` (contiguous, float32), keeps it, makes it require gradients. Returns the parameter.
 * A buffer may be of any type. An unsuitable tensor (NULL, wrong type, not contiguous) marks the
 * module as failed; ls_module_status reports it. */
LS_API ls_tensor *ls_module_add_param(ls_module *module, const char *name, ls_tensor *value);
LS_API ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *value);

/* Children in order of addition: how many, and number `i` with its name (NULL when there is no such
 * child). Borrowed. */
LS_API int ls_module_child_count(const ls_module *module);
LS_API ls_module *ls_module_child_at(const ls_module *module, int i);
LS_API const char *ls_module_child_name(const ls_module *module, int i);
/* Parts by their dotted names, as ls_param has them: ls_module_child(net, "layers.0.fc1"),
 * ls_module_param(net, "layers.0.fc1.weight"). Names lead through a wrapper (ls_ddp_new) as without
 * it. Borrowed; NULL with LS_ERR_INVALID, which names the first part that is missing. */
LS_API ls_module *ls_module_child(const ls_module *module, const char *name);
LS_API ls_tensor *ls_module_param(const ls_module *module, const char *name);
LS_API ls_tensor *ls_module_buffer(const ls_module *module, const char *name);

LS_API ls_tensor *ls_forward(ls_module *module, ls_tensor *x);
/* The same with several inputs and outputs (1 to LS_CALL_TENSORS_MAX of each), of either kind of
 * class: one whose class has `forward` takes one and gives one. `outputs` is filled; after an error
 * with poisoned tensors, so that the status may be looked at later. An output that is poisoned is
 * an error, too. */
LS_API ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                                 ls_tensor **outputs, int output_count);
/* ls_forward(module, x), whose activations are not kept but computed again in backward: less memory
 * for the time of a second forward pass. Bit-equal gradients; see ls_recompute_call in autograd.h.
 * Use it for the blocks of a deep network, not for the whole: the activations of one piece are in
 * memory while backward is inside it. ls_module_train only after ls_backward. */
LS_API ls_tensor *ls_recompute(ls_module *module, ls_tensor *x);
/* The same of ls_forward_many. */
LS_API ls_status ls_recompute_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                                   ls_tensor **outputs, int output_count);
/* Hooks on a module's forward (register_forward_pre_hook, register_forward_hook): called before it,
 * with outputs NULL and output_count 0, or after it. A hook may put other tensors in the place of
 * inputs (before) or outputs (after). An error is that of the forward. They run again where
 * ls_recompute does (ls_recomputing tells). NULL with the error set on failure. */
typedef ls_status (*ls_forward_hook_fn)(void *arg, ls_module *module, ls_tensor **inputs,
                                        int input_count, ls_tensor **outputs, int output_count);
LS_API ls_hook *ls_forward_pre_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg);
LS_API ls_hook *ls_forward_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg);

LS_API void ls_module_train(ls_module *module, bool training); /* recursive; new modules train */

typedef struct ls_param {
    const char *name; /* "layers.0.fc1.weight"; valid while the module lives */
    ls_tensor *value; /* borrowed */
} ls_param;
/* Number of distinct parameters (a shared one counts once, under its first name). */
LS_API int ls_module_param_count(ls_module *module);
/* Fills out[count] in order of addition; returns how many there are. */
LS_API int ls_module_params(ls_module *module, ls_param *out, int count);
LS_API int64_t ls_module_numel(ls_module *module); /* elements of all parameters */

/* Parameters, buffers and each class' own state under dotted names. */
LS_API ls_status ls_module_state(ls_module *module, const char *prefix,
                                 const ls_state_visitor *visitor);

/* 64-bit hash of all parameters and buffers, names included; equal bytes give equal hashes. */
LS_API uint64_t ls_module_hash(ls_module *module);

/* ---- layers; parameters, names, shapes and initial distributions as in PyTorch ------------- */

typedef struct ls_linear_options {
    size_t size;
    bool bias;
    ls_activation activation; /* of the result, in one pass; see ls_linear_activation */
} ls_linear_options;
#define LS_DEFAULTS_ls_linear_options .bias = true,
LS_DEFAULTS_FUNCTION(linear)
/* weight [out,in], bias [out]: U(-1/sqrt(in), 1/sqrt(in)). */
LS_API ls_module *ls_linear_new(int64_t in, int64_t out, const ls_linear_options *options);

LS_API ls_module *ls_embedding_new(int64_t count, int64_t dim); /* weight [count,dim]: N(0,1) */

typedef struct ls_layer_norm_options {
    size_t size;
    double eps;
    bool affine;
} ls_layer_norm_options;
#define LS_DEFAULTS_ls_layer_norm_options .eps = 1e-5, .affine = true,
LS_DEFAULTS_FUNCTION(layer_norm)
LS_API ls_module *ls_layer_norm_new(int64_t dim, const ls_layer_norm_options *options);

/* weight [dim] of ones (torch.nn.RMSNorm, with eps given). */
LS_API ls_module *ls_rms_norm_new(int64_t dim, double eps);
LS_API ls_module *ls_dropout_new(double p); /* identity in evaluation */
LS_API ls_module *ls_relu_new(void);
LS_API ls_module *ls_gelu_new(ls_gelu_kind kind);
/* x [B,T,in] -> [B,T,hidden]: `layers` of long short-term memory, each from a state of zeros and
 * over the one before (torch.nn.LSTM with batch_first). weight_ih_l0 [4 hidden,in], weight_hh_l0 [4
 * hidden,hidden], bias_ih_l0, bias_hh_l0 [4 hidden], _l1 …: U(-1/sqrt(hidden), 1/sqrt(hidden)). To
 * carry a state on, use ls_lstm. */
LS_API ls_module *ls_lstm_new(int64_t in, int64_t hidden, int layers);
LS_API ls_module *ls_flatten_new(void); /* [N,..] -> [N,D] */
/* Returns its input (torch.nn.Identity): it fills a place in a sequence, so that later layers keep
 * their names when the previous layer includes its activation. */
LS_API ls_module *ls_identity_new(void);
/* Runs children in order; takes them. A NULL child is reported by ls_module_status. */
LS_API ls_module *ls_sequential_new(ls_module **children, int count);

/* ---- layers of images [N,C,H,W], see vision.h ---------------------------------------------- */

typedef struct ls_conv2d_layer_options {
    size_t size;
    int64_t stride, padding, dilation, groups; /* of both axes */
    bool bias;
    bool relu; /* of the result, in one pass */
} ls_conv2d_layer_options;
#define LS_DEFAULTS_ls_conv2d_layer_options .stride = 1, .dilation = 1, .groups = 1, .bias = true,
LS_DEFAULTS_FUNCTION(conv2d_layer)
/* weight [out,in/groups,kernel,kernel], bias [out]: U(-b, b), b = 1/sqrt(in/groups * kernel^2). */
LS_API ls_module *ls_conv2d_new(int64_t in, int64_t out, int64_t kernel,
                                const ls_conv2d_layer_options *options);
/* Parameters weight (1), bias (0) [channels]; buffers running_mean (0), running_var (1) [channels],
 * num_batches_tracked (int64, a scalar). PyTorch's defaults are eps 1e-5, momentum 0.1. */
LS_API ls_module *ls_batch_norm2d_new(int64_t channels, double eps, double momentum);
/* ls_relu(ls_add(ls_forward(layer, x), residual)) in one pass over memory; residual NULL: none
 * (ls_batch_norm). `layer` is one that ls_batch_norm2d_new made. */
LS_API ls_tensor *ls_batch_norm2d_relu(ls_module *layer, ls_tensor *x, ls_tensor *residual);
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
/* x [N,in,L] -> [N,out,L']: weight [out,in/groups,kernel], bias [out]: U(-b, b), b = 1/sqrt(in/groups
 * * kernel). */
LS_API ls_module *ls_conv1d_new(int64_t in, int64_t out, int64_t kernel,
                                const ls_conv1d_layer_options *options);

typedef struct ls_conv_transpose2d_layer_options {
    size_t size;
    int64_t stride, padding, output_padding, dilation, groups; /* of both axes */
    bool bias;
} ls_conv_transpose2d_layer_options;
#define LS_DEFAULTS_ls_conv_transpose2d_layer_options                                              \
    .stride = 1, .dilation = 1, .groups = 1, .bias = true,
LS_DEFAULTS_FUNCTION(conv_transpose2d_layer)
/* weight [in,out/groups,kernel,kernel], bias [out]: U(-b, b), b = 1/sqrt(out/groups * kernel^2). */
LS_API ls_module *ls_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel,
                                          const ls_conv_transpose2d_layer_options *options);
LS_API ls_module *ls_upsample_new(const ls_upsample_options *options); /* ls_upsample */

typedef struct ls_group_norm_options {
    size_t size;
    double eps;
    bool affine; /* weight (1) and bias (0) [channels] */
} ls_group_norm_options;
#define LS_DEFAULTS_ls_group_norm_options .eps = 1e-5, .affine = true,
LS_DEFAULTS_FUNCTION(group_norm)
/* x [N,channels,..], see ls_group_norm. */
LS_API ls_module *ls_group_norm_new(int64_t groups, int64_t channels,
                                    const ls_group_norm_options *options);

/* ---- initialisation: in place; value streams are keyed by (seed, parameters made so far) --- */

LS_API ls_status ls_fill_uniform(ls_tensor *t, double low, double high);
LS_API ls_status ls_fill_normal(ls_tensor *t, double mean, double std);
LS_API ls_status ls_fill_constant(ls_tensor *t, double value);
/* N(0, 2/fan), for layers followed by a ReLU (He et al. 2015). For a weight [out,in,..] fan is the
 * number of inputs of an output, or with fan_out the number of outputs of an input. */
LS_API ls_status ls_fill_kaiming_normal(ls_tensor *weight, bool fan_out);

/* LS_SKIP_INIT(true); (torch.nn.utils.skip_init): from here to the end of the block, layers are
 * made, but no random values are drawn for them (ls_fill_uniform and _normal leave a tensor as it
 * is: anything, where it is ls_empty's). For layers whose values follow, from a model's own
 * initialisation or a file:
 *     {
 *         LS_SKIP_INIT(path != NULL);
 *         net = ls_gpt2_new(NULL);
 *     }
 * Drawing takes most of the time in which a large model is made. Constants are still set, and the
 * random streams advance, so later draws get the values that they would get without this mode. The
 * mode belongs to the thread; blocks nest, and false keeps the mode of the enclosing block. A
 * declaration, like LS_SCOPE. */
LS_API bool ls_set_skip_init(bool skip); /* returns the former mode of this thread */
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

/* Scales all gradients so that their global 2-norm is at most max_norm (torch's clip_grad_norm_);
 * `norm` (may be NULL) gets the norm before. A NaN or infinite norm is LS_ERR_INVALID and changes
 * nothing. */
LS_API ls_status ls_clip_grad_norm(ls_module *module, double max_norm, double *norm);

#if !defined(LS_NO_SITES)
#define ls_forward(...) LS_AT(ls_forward(__VA_ARGS__))
#define ls_forward_many(...) LS_AT(ls_forward_many(__VA_ARGS__))
#define ls_recompute(...) LS_AT(ls_recompute(__VA_ARGS__))
#define ls_recompute_many(...) LS_AT(ls_recompute_many(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
