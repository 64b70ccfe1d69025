/* SPDX-License-Identifier: Apache-2.0 */
/* A module's weights as a safetensors file: the module is the only item, without a wrapper, whose
 * state of training (a communication hook's) are no weights. */
#include <lockstep/lockstep.h>

ls_status ls_module_load_safetensors(ls_module *module, const char *path,
                                     const ls_safetensors_options *options)
{
    const ls_checkpoint_item item = LS_ITEM("", ls_ddp_module(module));
    return ls_safetensors_load(path, &item, 1, options);
}

ls_status ls_module_save_safetensors(ls_module *module, const char *path,
                                     const ls_safetensors_options *options)
{
    const ls_checkpoint_item item = LS_ITEM("", ls_ddp_module(module));
    return ls_safetensors_save(path, &item, 1, options);
}
