/* SPDX-License-Identifier: Apache-2.0 */
/* A convolutional network as small as one can be and still read digits:
 *
 *     [N,C,H,W] -> conv1 3x3, 16 -> bn1 -> relu -> conv2 3x3, 32 -> bn2 -> relu
 *               -> average to 4x4 -> fc -> [N,classes]
 */
#include <lockstep/models/cnn.h>

#define NARROW 16
#define WIDE 32
#define SIDE 4 /* of the averaged image, whatever the input's size */

typedef struct cnn {
    ls_module base;
    ls_module *conv1, *bn1, *conv2, *bn2, *fc;
} cnn;

static ls_tensor *first(ls_module *m, ls_tensor *const *x)
{
    cnn *self = (cnn *)m;
    return ls_batch_norm2d_relu(self->bn1, ls_forward(self->conv1, x[0]), NULL);
}

static ls_tensor *second(ls_module *m, ls_tensor *const *x)
{
    cnn *self = (cnn *)m;
    return ls_batch_norm2d_relu(self->bn2, ls_forward(self->conv2, x[0]), NULL);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x)
{
    cnn *self = (cnn *)m;
    ls_tensor *y = ls_adaptive_avg_pool2d(x[0], SIDE, SIDE);
    return ls_forward(self->fc, ls_reshape(y, LS_SHAPE(ls_size(y, 0), WIDE * SIDE * SIDE)));
}

static ls_tensor *cnn_forward(ls_module *m, ls_tensor *x)
{
    x = first(m, &x);
    x = second(m, &x);
    return head(m, &x);
}

static void cnn_parts(ls_module *m, ls_parts *parts)
{
    (void)m;
    ls_parts_add(parts, &LS_PART(.name = "first", .run = first, .uses = "conv1 bn1"));
    ls_parts_add(parts, &LS_PART(.name = "second", .run = second, .uses = "conv2 bn2"));
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head, .uses = "fc"));
}

static const ls_module_class cnn_class =
    LS_MODULE_CLASS(.name = "cnn", .forward = cnn_forward, .parts = cnn_parts);

static ls_module *conv(int64_t in, int64_t out)
{
    return ls_conv2d_new(in, out, 3,
                         LS_OPTIONS(ls_conv2d_layer_options, .padding = 1, .bias = false));
}

ls_module *ls_cnn_new(int64_t channels, int64_t classes)
{
    cnn *self = ls_module_new(sizeof *self, &cnn_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->conv1 = ls_module_add(m, "conv1", conv(channels, NARROW));
    self->bn1 = ls_module_add(m, "bn1", ls_batch_norm2d_new(NARROW, 1e-5, 0.1));
    self->conv2 = ls_module_add(m, "conv2", conv(NARROW, WIDE));
    self->bn2 = ls_module_add(m, "bn2", ls_batch_norm2d_new(WIDE, 1e-5, 0.1));
    self->fc = ls_module_add(m, "fc", ls_linear_new(WIDE * SIDE * SIDE, classes, NULL));
    if (ls_module_status(m) < 0) {
        ls_module_free(m);
        return NULL;
    }
    return m;
}
