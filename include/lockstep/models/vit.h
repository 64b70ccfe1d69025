/* SPDX-License-Identifier: Apache-2.0 */
/* A vision transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"), with the names
 * and layouts of torchvision's VisionTransformer (vit_b_16, …):
 *
 *     class_token [1,1,C]     conv_proj.weight [C,3,p,p], .bias     encoder.pos_embedding [1,S,C]
 *     encoder.layers.encoder_layer_N.ln_1, .ln_2
 *     encoder.layers.encoder_layer_N.self_attention.in_proj_weight [3C,C], .in_proj_bias, .out_proj
 *     encoder.layers.encoder_layer_N.mlp.0 [wide,C], .mlp.3 [C,wide]
 *     encoder.ln              heads.head [classes,C]
 */
#ifndef LOCKSTEP_MODELS_VIT_H
#define LOCKSTEP_MODELS_VIT_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_vit_options { /* the defaults are vit_b_16 */
    size_t size;
    int layers, heads;
    int64_t dim;          /* a multiple of heads */
    int64_t wide;         /* width of the feed-forward layers */
    int64_t image, patch; /* edge lengths in pixels; image is a multiple of patch */
    int64_t channels, classes;
    double dropout;
    bool recompute; /* layers keep only their input and run again in backward */
} ls_vit_options;
#define LS_DEFAULTS_ls_vit_options                                                                 \
    .layers = 12, .heads = 12, .dim = 768, .wide = 3072, .image = 224, .patch = 16, .channels = 3, \
    .classes = 1000,
LS_DEFAULTS_FUNCTION(vit)

/* x [B,channels,image,image] -> logits [B,classes]. NULL with ls_error_message on failure. */
LS_API ls_module *ls_vit_new(const ls_vit_options *options);

#ifdef __cplusplus
}
#endif
#endif
