/* SPDX-License-Identifier: Apache-2.0 */
/* C++17 on top of the C interface: shapes from lists, a scope guard, owning handles. Everything
 * else is called as in C; options start from ls_..._defaults().
 *
 *     lockstep::module net{ls_linear_new(784, 10, nullptr)};
 *     auto options = ls_sgd_defaults();
 *     options.lr = 0.1;
 *     lockstep::optim optim{ls_sgd_new(net.get(), &options)};
 *     for (int64_t step = 0; step < steps; step++) {
 *         lockstep::scope scope;
 *         ls_tensor *x = ls_randn(lockstep::shape({64, 784}));
 *         …
 *         lockstep::check(ls_backward(loss));
 *     }
 *
 * Functions of this header throw lockstep::error on failure; functions of C report errors as in C,
 * and check and own turn their results into exceptions. Nothing here has a state or needs a library
 * other than liblockstep. Declare handles after the runtime and in the order of use, because the
 * last one declared is freed first.
 */
#ifndef LOCKSTEP_LOCKSTEP_HPP
#define LOCKSTEP_LOCKSTEP_HPP

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>

#include <lockstep/lockstep.h>

namespace lockstep
{

/* ---- errors ------------------------------------------------------------------------------- */

/* A failed call: what() is the status and ls_error_message() at the time of the throw. */
class error : public std::runtime_error
{
  public:
    explicit error(ls_status status)
        : std::runtime_error(std::string(ls_status_name(status)) + ": " + ls_error_message()),
          status_(status)
    {
    }
    ls_status status() const noexcept
    {
        return status_;
    }

  private:
    ls_status status_;
};

/* Throws lockstep::error when `status` is an error; returns it otherwise. */
inline ls_status check(ls_status status)
{
    if (status < 0) {
        throw error(status);
    }
    return status;
}

/* The value of a one-element tensor; throws on failure. */
inline double item(ls_tensor *t)
{
    double value = 0.0;
    check(ls_item(t, &value));
    return value;
}

/* ---- shapes ------------------------------------------------------------------------------- */

/* LS_SHAPE of C: shape({2, 3}); shape({}) is that of a scalar. Throws for more than LS_DIMS_MAX
 * dimensions. */
inline ls_shape shape(std::initializer_list<int64_t> dims)
{
    if (dims.size() > LS_DIMS_MAX) {
        throw std::length_error("lockstep::shape: more than LS_DIMS_MAX dimensions");
    }
    ls_shape made{};
    for (const int64_t dim : dims) {
        made.dim[made.ndim++] = dim;
    }
    return made;
}

/* ---- guards: from their declaration to the end of the block --------------------------------- */

/* LS_SCOPE of C. */
class scope
{
  public:
    scope() : scope_(ls_scope_enter())
    {
    }
    ~scope()
    {
        ls_scope_leave(scope_);
    }
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;

  private:
    ls_scope *scope_;
};

/* LS_NO_GRAD, LS_AUTOCAST and LS_RETAIN_GRAPH of C: set a mode of this thread and restore it at the
 * end of the block. */
template <bool (*set)(bool)> class mode
{
  public:
    explicit mode(bool enabled) : before_(set(enabled))
    {
    }
    ~mode()
    {
        (void)set(before_);
    }
    mode(const mode &) = delete;
    mode &operator=(const mode &) = delete;

  private:
    bool before_;
};
struct no_grad : mode<ls_set_grad_mode> {
    no_grad() : mode(false)
    {
    }
};
using autocast = mode<ls_set_autocast>;
using retain_graph = mode<ls_set_retain_graph>;

/* ls_init and ls_finalize. Throws when the world cannot be joined. */
class runtime
{
  public:
    explicit runtime(const ls_init_options *options = nullptr)
    {
        check(ls_init(options));
    }
    ~runtime()
    {
        (void)ls_finalize();
    }
    runtime(const runtime &) = delete;
    runtime &operator=(const runtime &) = delete;
};

/* ---- owning handles -------------------------------------------------------------------------- */

struct deleter {
    void operator()(ls_module *p) const noexcept
    {
        ls_module_free(p);
    }
    void operator()(ls_optim *p) const noexcept
    {
        ls_optim_free(p);
    }
    void operator()(ls_dataset *p) const noexcept
    {
        ls_dataset_free(p);
    }
    void operator()(ls_sampler *p) const noexcept
    {
        ls_sampler_free(p);
    }
    void operator()(ls_loader *p) const noexcept
    {
        ls_loader_free(p);
    }
    void operator()(ls_tensor *p) const noexcept /* one that ls_keep took out of its scope */
    {
        ls_free(p);
    }
    void operator()(ls_group *p) const noexcept /* collective: on all ranks in the same order */
    {
        (void)ls_group_free(p);
    }
};
template <typename T> using handle = std::unique_ptr<T, deleter>;
using module = handle<ls_module>;
using optim = handle<ls_optim>;
using dataset = handle<ls_dataset>;
using sampler = handle<ls_sampler>;
using loader = handle<ls_loader>;
using tensor = handle<ls_tensor>;
using group = handle<ls_group>;

/* Takes the result of a constructor of C; throws when it is NULL. */
template <typename T> handle<T> own(T *made)
{
    if (made == nullptr) {
        throw error(ls_error_status());
    }
    return handle<T>(made);
}

} // namespace lockstep

#endif
