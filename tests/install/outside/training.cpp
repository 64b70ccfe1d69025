/* SPDX-License-Identifier: Apache-2.0 */
/* A small training in C++ with lockstep.hpp: y = 2 x0 - x1, learned by a linear layer; and that
 * guards and handles give back what they hold, also when an exception passes. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <lockstep/lockstep.hpp>

namespace
{

void check(bool truth, const char *what)
{
    if (!truth) {
        std::fprintf(stderr, "%s: %s\n", what, ls_error_message());
        std::exit(1);
    }
}

double train(double lr, int steps)
{
    const lockstep::module net = lockstep::own(ls_linear_new(2, 1, nullptr));
    auto options = ls_sgd_defaults();
    options.lr = lr;
    const lockstep::optim optim = lockstep::own(ls_sgd_new(net.get(), &options));
    double loss = 0.0;
    for (int step = 0; step < steps; step++) {
        const lockstep::scope scope;
        ls_tensor *x = ls_rand(lockstep::shape({16, 2}));
        ls_tensor *y = ls_sub(ls_scale(ls_slice(x, 1, 0, 1), 2.0), ls_slice(x, 1, 1, 2));
        ls_tensor *error = ls_mse_loss(ls_forward(net.get(), x), y);
        lockstep::check(ls_backward(error));
        lockstep::check(ls_optim_step(optim.get()));
        ls_optim_zero_grad(optim.get());
        loss = lockstep::item(error);
        if (loss < 1e-6) {
            break; /* leaves this loop, and the scope */
        }
    }
    return loss;
}

void shapes_and_modes()
{
    const lockstep::scope scope;
    const ls_shape shape = lockstep::shape({2, 3, 4});
    check(shape.ndim == 3 && shape.dim[1] == 3, "shape");
    check(ls_numel(ls_zeros(lockstep::shape({}), LS_FLOAT32)) == 1, "a scalar");
    ls_tensor *w = ls_set_requires_grad(ls_ones(lockstep::shape({2}), LS_FLOAT32), true);
    {
        const lockstep::no_grad off;
        const lockstep::autocast on(true);
        check(!ls_requires_grad(ls_neg(w)), "no_grad");
    }
    check(ls_requires_grad(ls_neg(w)), "after no_grad");
    check(!ls_set_autocast(false), "after autocast");
}

void failures_are_exceptions()
{
    ls_tensor *inside = nullptr;
    try {
        const lockstep::scope scope;
        inside = ls_ones(lockstep::shape({2}), LS_FLOAT32);
        (void)lockstep::own(ls_linear_new(0, 1, nullptr));
        check(false, "no exception");
    } catch (const lockstep::error &e) {
        check(e.status() == LS_ERR_INVALID, "its status");
        check(std::strstr(e.what(), "Linear") != nullptr, e.what());
    }
    check(ls_tensor_status(inside) == LS_ERR_STALE, "the scope was left");
    ls_sgd_options forgotten{};
    forgotten.lr = 0.5;
    const lockstep::module net = lockstep::own(ls_linear_new(1, 1, nullptr));
    check(ls_sgd_new(net.get(), &forgotten) == nullptr, "a size of 0");
    check(LS_STATUS_OF(ls_sgd_new(net.get(), &forgotten)) == LS_ERR_INVALID, "its status");
    LS_CHECK(ls_module_status(net.get()));
}

void a_group_and_a_loader()
{
    ls_group *made = nullptr;
    lockstep::check(ls_group_new(ls_world(), nullptr, 0, "copy", &made));
    const lockstep::group group = lockstep::own(made);
    float one = 1.0f;
    auto options = ls_collective_defaults();
    options.tag = "one";
    lockstep::check(
        ls_all_reduce(group.get(), &one, &one, 1, LS_FLOAT32, LS_SUM, &options, nullptr));
    check(one == 1.0f, "a world of one");
    const lockstep::tensor x{ls_keep(ls_ones(lockstep::shape({8, 2}), LS_FLOAT32))};
    const lockstep::tensor y{ls_keep(ls_zeros(lockstep::shape({8}), LS_INT32))};
    const auto data = lockstep::own(ls_tensor_dataset_new(x.get(), y.get()));
    auto batches = ls_sampler_defaults();
    batches.batch = 4;
    const auto sampler = lockstep::own(ls_sampler_new(8, &batches));
    const auto loader = lockstep::own(ls_loader_new(data.get(), sampler.get(), nullptr));
    ls_batch batch{};
    batch.size = sizeof batch;
    int count = 0;
    while (ls_loader_next(loader.get(), &batch)) {
        count++;
    }
    check(count == 2 && ls_loader_status(loader.get()) == LS_OK, "two batches");
}

} // namespace

int main()
{
    const lockstep::runtime runtime;
    const double loss = train(0.5, 400);
    check(std::isfinite(loss) && loss < 1e-4, "the loss");
    shapes_and_modes();
    failures_are_exceptions();
    a_group_and_a_loader();
    std::printf("1..1\nok 1 - a_program_in_cpp_trains\n");
    return 0;
}
