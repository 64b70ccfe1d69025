/* Calling a module. The rank's activity record names the innermost module, so a report on a rank
 * that died or hangs says in which layer. */
#include "nn/module.h"
#include "tensor/tensor.h"

/* The last error may be the constructor's, or of long ago. */
static ls_status fail_null(void)
{
    bool failed = ls__self.status < 0;
    return ls__fail(LS_ERR_INVALID,
                    "forward: the module is NULL; check what its constructor returned%s%s%s",
                    failed ? " (the last error was: " : "", failed ? ls_error_message() : "",
                    failed ? ")" : "");
}

static ls_tensor *refuse(ls_status status)
{
    (void)ls__fail_at_site(status);
    ls__tensors *tensors = ls__tensors_get("ls_forward");
    return tensors ? ls__poison(tensors) : ls__poison_fixed(status);
}

ls_tensor *ls_forward(ls_module *module, ls_tensor *x)
{
    ls_status status = module ? ls_module_status(module) : fail_null();
    if (status < 0) {
        return refuse(status);
    }
    ls__phase former = ls__activity_enter(LS__PHASE_FORWARD, ls__module_name(module));
    const char *file = ls__self.file;
    int line = ls__self.line;
    ls__self.modules++;
    ls_tensor *y = module->cls->forward(module, x);
    if (--ls__self.modules == 0) {
        ls__tensor_give_out(y);
    }
    /* What stands around this call in an expression is blamed on its line, not the module's. */
    ls__self.file = file;
    ls__self.line = line;
    ls__activity_leave(former);
    return y;
}

static ls_tensor *forward_of(ls_tensor *x, void *module)
{
    return ls_forward(module, x);
}

ls_tensor *ls_recompute(ls_module *module, ls_tensor *x)
{
    return ls_recompute_call(forward_of, x, module);
}
