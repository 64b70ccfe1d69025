/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that cannot be had: each allocation of a scenario fails in turn, until it succeeds
 * untouched; the texts that came are shown once each, in the order they came first. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "golden.h"

#include "base/digest.h"
#include "comm/algorithm/registry.h"
#include "comm/core/group.h"
#include "comm/runtime/init.h"
#include "comm/tune/cache.h"
#include "comm/tune/tune.h"
#include "job/bootstrap/methods.h"
#include "tools/trace.h"

static const char *files[3]; /* made before memory gets scarce */

static void fail_init(golden_fault kind)
{
    bool hit = true;
    for (int n = 1; hit; n++) {
        const ls__env *env = golden_env();
        golden_fail(kind, n);
        const ls_status status = ls__init_with(env, NULL);
        hit = golden_failed();
        golden_fail(kind, 0);
        if (status < 0) {
            golden_show_once(status);
        } else {
            (void)ls_finalize();
        }
    }
}

GOLDEN_BARE(of_a_runtime)
{
    fail_init(GOLDEN_MEMORY);
    fail_init(GOLDEN_MALLOC);
    fail_init(GOLDEN_SYSTEM);
}

GOLDEN_BARE(of_a_trace)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/trace.json", golden_folder());
    (void)setenv("LOCKSTEP_TRACE", path, 1);
    fail_init(GOLDEN_MEMORY);
    fail_init(GOLDEN_SYSTEM);
}

/* The agent of a host that another launcher started; its thread never starts. */
static void fail_agent(golden_fault kind, int calls)
{
    const ls__detected torchrun = {
        .launcher = "torchrun", .size = 1, .local_size = 1, .job = "golden"};
    for (int n = 1; n <= calls; n++) {
        ls__agent_thread *agent = NULL;
        const ls__env *env = golden_env();
        golden_fail(kind, n);
        golden_show_once(
            ls__agent_thread_start(env, &torchrun, ls__deadline_after(env, 1000), &agent));
        golden_fail(kind, 0);
    }
}

GOLDEN_BARE(of_the_agent_of_another_launcher)
{
    fail_agent(GOLDEN_MEMORY, 4);
    fail_agent(GOLDEN_SYSTEM, 4);
}

/* What only jobs of several ranks or hosts reach, called by itself. */
static ls_status use_parts_of_jobs(void)
{
    static const ls__layout far = {.size = 2, .host = {0, 1}};
    uint8_t code[LS__MAC_BYTES];
    ls__counts counts;
    ls__parent_watch *watch = NULL;
    ls_memory_stats stats = {.size = sizeof stats};
    const ls__timings timings = {0};
    LS_TRY(ls_memory_get_stats(&stats)); /* makes what the first tensor makes */
    LS_TRY(ls__tune_keep(ls_world()->comm, &far, &timings));
    LS_TRY(ls__mac("key", 3, "text", 4, code));
    LS_TRY(
        ls__tune_count(ls__algorithm_find(LS__OP_ALL_REDUCE, "ring"), &far, golden_env(), &counts));
    LS_TRY(ls__parent_watch_start(golden_env(), getpid(), NULL, "torchrun", &watch));
    ls__parent_watch_end(watch);
    return LS_OK;
}

GOLDEN_BARE(of_parts_of_jobs)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/times", golden_folder());
    (void)setenv("LOCKSTEP_TUNE_FILE", path, 1);
    golden_fail_each(GOLDEN_MEMORY, use_parts_of_jobs);
    golden_fail_each(GOLDEN_MALLOC, use_parts_of_jobs);
    golden_fail_each(GOLDEN_SYSTEM, use_parts_of_jobs);
}

/* Its parent has seen its end. */
GOLDEN_BARE(of_a_local_rank_0_that_has_ended)
{
    ls__parent_watch *watch = NULL;
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    (void)waitpid(pid, NULL, 0);
    golden_show_once(ls__parent_watch_start(golden_env(), pid, NULL, "torchrun", &watch));
}

/* What `lockstep trace` does. */
static ls_status use_a_trace(void)
{
    trace t;
    ls_status status = trace_read(files[0], &t);
    if (status == LS_OK) {
        status = trace_divide(files[0], &t);
    }
    trace_free(&t);
    if (status == LS_ERR_MEMORY) { /* else it is said in the words of the JSON library */
        golden_show_once(status);
    }
    return LS_OK;
}

/* For the JSON library: version 2.14 frees what it has not allocated when it gets none. */
static void *never_refused(size_t bytes)
{
    return aligned_alloc(16, bytes / 16 * 16 + 16);
}

GOLDEN_BARE(of_who_reads_a_trace)
{
    json_set_alloc_funcs(never_refused, free);
    static const char text[] =
        "{\"otherData\":{\"lockstep_trace\":1,\"world_size\":1,\"ranks\":[{\"host\":\"h\"}]},"
        "\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"step\",\"pid\":0,\"tid\":1,"
        "\"ts\":0,\"dur\":10,\"args\":{\"step\":1}}]}";
    trace t;
    files[0] = golden_file("trace.json", text, sizeof text - 1);
    MUST(trace_read(files[0], &t)); /* the list of mapped files is made once */
    trace_free(&t);
    golden_fail_each(GOLDEN_MALLOC, use_a_trace);
}

static ls_status use_tensors(void)
{
    ls_status status = LS_OK;
    {
        LS_SCOPE;
        ls_tensor *w = ls_set_requires_grad(ls_ones(LS_SHAPE(4, 4), LS_FLOAT32), true);
        ls_tensor *y = ls_matmul(ls_relu(w), w);
        status = ls_backward(ls_mean(ls_softmax(y, 1)));
    }
    return status;
}

GOLDEN_BARE(of_tensors)
{
    golden_fail_each(GOLDEN_MEMORY, use_tensors);
    golden_fail_each(GOLDEN_MALLOC, use_tensors);
}

static ls_tensor *pass_on(ls_module *self, ls_tensor *x)
{
    (void)self;
    return x;
}

/* Why it cannot be made is kept in memory, too. */
static ls_status use_broken_module(void)
{
    static const ls_module_class plain = LS_MODULE_CLASS(.name = "plain", .forward = pass_on);
    ls_module *net = ls_module_new(sizeof *net, &plain);
    if (net != NULL) {
        (void)ls_module_add(net, "one", NULL);
    }
    const ls_status status = ls_module_status(net);
    ls_module_free(net);
    return status;
}

GOLDEN_BARE(of_a_module_that_cannot_be_made)
{
    golden_fail_each(GOLDEN_MALLOC, use_broken_module);
}

static ls_status use_modules(void)
{
    ls_module *net = ls_linear_new(4, 4, NULL);
    ls_status status = ls_module_status(net);
    if (status == LS_OK && ls_module_part_count(net) < 0) {
        status = (ls_status)ls_module_part_count(net);
    }
    ls_optim *optim = status == LS_OK ? ls_adam_new(net, NULL) : NULL;
    if (optim == NULL) {
        golden_show_once(status < 0 ? status : LS_ERR_MEMORY);
        ls_module_free(net);
        return LS_OK;
    }
    {
        LS_SCOPE;
        status = ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, 4), LS_FLOAT32))));
    }
    if (status == LS_OK) {
        status = ls_optim_step(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    return status;
}

GOLDEN_BARE(of_modules_and_optimizers)
{
    golden_fail_each(GOLDEN_MEMORY, use_modules);
    golden_fail_each(GOLDEN_MALLOC, use_modules);
}

static ls_status use_data(void)
{
    ls_dataset *d = NULL;
    ls_sampler *s = NULL;
    ls_loader *l = NULL;
    ls_batch batch = {.size = sizeof batch};
    ls_status status =
        LS_STATUS_OF(d = ls_text_dataset_new(
                         files[0], LS_OPTIONS(ls_text_options, .context = 4, .held_out = 0)));
    if (status == LS_OK) {
        status = LS_STATUS_OF(s = ls_sampler_new(d->count, NULL));
    }
    if (status == LS_OK) {
        status = LS_STATUS_OF(l = ls_loader_new(d, s, NULL));
    }
    if (status == LS_OK && !ls_loader_next(l, &batch)) {
        status = ls_loader_status(l);
    }
    ls_loader_free(l);
    ls_sampler_free(s);
    ls_dataset_free(d);
    return status;
}

GOLDEN_BARE(of_data)
{
    files[0] = golden_file("text", "abcdefghijklmnopqrstuvwxyz", 26);
    golden_fail_each(GOLDEN_MEMORY, use_data);
    golden_fail_each(GOLDEN_MALLOC, use_data);
    golden_fail_each(GOLDEN_SYSTEM, use_data);
    golden_fail_each(GOLDEN_FILES, use_data);
}

/* Folders of images and of tokens, and a pair of arrays that is scattered. */
static ls_status use_files(void)
{
    ls_dataset *d = NULL, *shown = NULL;
    ls_sampler *s = NULL;
    ls_loader *l = NULL;
    ls_batch batch = {.size = sizeof batch};
    ls_status status = LS_STATUS_OF(d = ls_cifar10_dataset_new(files[0], false));
    ls_dataset_free(d);
    d = NULL;
    if (status == LS_OK) {
        status = LS_STATUS_OF(
            d = ls_tokens_dataset_new(files[1], LS_OPTIONS(ls_tokens_options, .context = 2)));
        ls_dataset_free(d);
        d = NULL;
    }
    if (status == LS_OK) {
        status = LS_STATUS_OF(d = ls_npy_dataset_new(files[2], files[2]));
    }
    if (status == LS_OK) {
        status = LS_STATUS_OF(shown = ls_transform_dataset_new(d, NULL)); /* takes d */
    }
    if (status == LS_OK) {
        status = LS_STATUS_OF(s = ls_sampler_new(shown->count, NULL));
    }
    if (status == LS_OK) {
        status = LS_STATUS_OF(
            l = ls_loader_new(
                shown, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER, .prefetch = 0)));
    }
    if (status == LS_OK && !ls_loader_next(l, &batch)) {
        status = ls_loader_status(l);
    }
    ls_loader_free(l);
    ls_sampler_free(s);
    ls_dataset_free(shown);
    return status;
}

GOLDEN_BARE(of_files_of_data)
{
    static const char header[] = "\x93NUMPY\x01\0\x3c\0{'descr': '<f4', 'fortran_order': False, "
                                 "'shape': (1,1,1,2)}";
    static char array[10 + 60 + 8];
    static const unsigned char image[3073];
    char images[300], folder[300];
    memset(array, ' ', 70);
    memcpy(array, header, sizeof header - 1);
    (void)snprintf(images, sizeof images, "%s/images", golden_folder());
    (void)snprintf(folder, sizeof folder, "%s/shards", golden_folder());
    if (mkdir(images, 0700) != 0 || mkdir(folder, 0700) != 0) {
        exit(3);
    }
    (void)golden_file("images/test_batch.bin", image, sizeof image);
    (void)golden_file("shards/a.bin", "12345678", 8);
    files[0] = images;
    files[1] = folder;
    files[2] = golden_file("array", array, sizeof array);
    golden_fail_each(GOLDEN_MEMORY, use_files);
    golden_fail_each(GOLDEN_MALLOC, use_files);
    golden_fail_each(GOLDEN_SYSTEM, use_files);
    golden_fail_each(GOLDEN_FILES, use_files);
}

static ls_status use_other_data(void)
{
    ls_dataset *d = NULL;
    ls_status status = LS_STATUS_OF(d = ls_idx_dataset_new(files[0], files[1]));
    ls_dataset_free(d);
    if (status == LS_OK) {
        d = NULL;
        status = LS_STATUS_OF(d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(3, 2), LS_FLOAT32),
                                                        ls_zeros(LS_SHAPE(3), LS_INT32)));
        ls_dataset_free(d);
    }
    return status;
}

GOLDEN_BARE(of_other_data)
{
    static const unsigned char x[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4};
    static const unsigned char y[] = {0, 0, 8, 1, 0, 0, 0, 2, 0, 1};
    files[0] = golden_file("x", x, sizeof x);
    files[1] = golden_file("y", y, sizeof y);
    golden_fail_each(GOLDEN_MEMORY, use_other_data);
    golden_fail_each(GOLDEN_MALLOC, use_other_data);
    golden_fail_each(GOLDEN_FILES, use_other_data);
}

static ls_status use_groups(void)
{
    static float buf[100000];
    ls_group *g = NULL;
    void *memory = NULL;
    LS_TRY(ls_group_new(ls_world(), NULL, 0, "part", &g));
    ls_status status = ls_group_alloc(g, 1000, &memory);
    if (status == LS_OK) {
        status = ls_all_reduce(g, buf, buf, 100000, LS_FLOAT32, LS_SUM, NULL, NULL);
    }
    if (memory != NULL) {
        (void)ls_group_dealloc(g, memory);
    }
    (void)ls_group_free(g);
    return status;
}

static ls_status use_parts(void)
{
    ls_group *g = NULL;
    ls_bytes *list = NULL;
    LS_TRY(ls_group_split(ls_world(), 0, 0, "part", &g));
    ls_status status = ls_all_gather_bytes(g, "four", 4, NULL, &list);
    ls_bytes_free(list);
    ls_mesh *mesh = NULL;
    if (status == LS_OK) {
        status = ls_mesh_new(g, "dp=1", &mesh);
        (void)ls_mesh_free(mesh);
    }
    (void)ls_group_free(g);
    return status;
}

GOLDEN_BARE(of_groups)
{
    golden_fail_each(GOLDEN_MEMORY, use_groups);
    golden_fail_each(GOLDEN_MALLOC, use_groups);
    golden_fail_each(GOLDEN_SYSTEM, use_groups);
}

GOLDEN_BARE(of_parts_and_objects)
{
    golden_fail_each(GOLDEN_MEMORY, use_parts);
}

static ls_status use_ddp(void)
{
    ls_module *net = ls_linear_new(4, 4, NULL);
    ls_module *ddp = ls_module_status(net) == LS_OK ? ls_ddp_new(net, ls_world(), NULL) : NULL;
    if (ddp == NULL) {
        golden_show_once(LS_ERR_MEMORY);
        ls_module_free(net);
        return LS_OK;
    }
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < 3; i++) {
        LS_SCOPE;
        status = ls_backward(ls_mean(ls_forward(ddp, ls_ones(LS_SHAPE(2, 4), LS_FLOAT32))));
    }
    int identical;
    uint64_t hash;
    char timeline[4096];
    if (status == LS_OK) {
        status = ls_replicas_identical(ddp, ls_world(), &identical, &hash);
    }
    if (status == LS_OK) {
        status = ls_ddp_timeline(ddp, timeline, sizeof timeline, NULL);
    }
    ls_module_free(ddp);
    return status;
}

/* Two gradients of a megabyte wait in sums. */
static ls_status use_shards(void)
{
    ls_module *net = ls_linear_new(512, 512, NULL), *ddp = NULL;
    ls_status status = ls_module_status(net);
    if (status == LS_OK) {
        status = LS_STATUS_OF(
            ddp = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .shards = 4)));
    }
    ls_module_free(ddp != NULL ? ddp : net);
    return status;
}

GOLDEN_BARE(of_ddp)
{
    golden_fail_each(GOLDEN_MEMORY, use_ddp);
    golden_fail_each(GOLDEN_MALLOC, use_ddp);
    golden_fail_each(GOLDEN_MEMORY, use_shards);
}

/* So many parameters that each table has a block of memory of its own. */
static ls_status use_reducers(void)
{
    enum { COUNT = 5000 };
    static ls_reducer_param params[COUNT];
    ls_reducer *r = NULL;
    for (int i = 0; i < COUNT; i++) {
        params[i] = (ls_reducer_param){.name = "p", .count = 1, .dtype = LS_FLOAT32};
    }
    LS_TRY(ls_reducer_new(ls_world(), params, COUNT, LS_OPTIONS(ls_reducer_options, .name = "many"),
                          &r));
    return ls_reducer_free(r);
}

GOLDEN_BARE(of_reducers)
{
    golden_fail_each(GOLDEN_MEMORY, use_reducers);
}

static ls_status use_checkpoints(void)
{
    ls_checkpoint *c = NULL;
    ls_module *net = ls_linear_new(4, 4, NULL);
    ls_status status = ls_module_status(net);
    const ls_checkpoint_item items[] = {LS_ITEM("model", net),
                                        LS_ITEM("random", ls_runtime_current())};
    int64_t step;
    if (status == LS_OK) {
        status = ls_checkpoint_new(golden_folder(), ls_world(),
                                   LS_OPTIONS(ls_checkpoint_options, .async = false), &c);
    }
    if (status == LS_OK) {
        status = ls_checkpoint_save(c, 1, items, 2);
    }
    if (status == LS_OK) {
        status = ls_checkpoint_load(c, items, 2, &step);
    }
    if (status == LS_ERR_MEMORY) {
        golden_show_once(status);
    }
    (void)ls_checkpoint_free(c);
    ls_module_free(net);
    return LS_OK;
}

static ls_status show_half(void *object, const char *prefix, const ls_state_visitor *v)
{
    const ls_state_tensor t = {
        .dtype = LS_FLOAT32, .ndim = 1, .global = {4}, .local = {2}, .data = object};
    return v->tensor(v->self, prefix, &t);
}

/* What a slice lacks is found with memory of its own. */
static ls_status use_an_incomplete_checkpoint(void)
{
    ls_checkpoint *c = NULL;
    float half[2] = {1, 2};
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "half", .object = half, .state = show_half};
    ls_status status = ls_checkpoint_new(golden_folder(), ls_world(),
                                         LS_OPTIONS(ls_checkpoint_options, .async = false), &c);
    if (status == LS_OK) {
        status = ls_checkpoint_save(c, 1, &item, 1);
    }
    golden_show_once(status);
    (void)ls_checkpoint_free(c);
    return LS_OK;
}

/* Where the JSON library runs out it may only say that it cannot read on; those words are its own.
 */
GOLDEN_BARE(of_checkpoints)
{
    if (freopen("/dev/null", "w", stderr) == NULL) {
        exit(3);
    }
    golden_fail_each(GOLDEN_MEMORY, use_checkpoints);
    golden_fail_each(GOLDEN_MALLOC, use_checkpoints);
    golden_fail_each(GOLDEN_MALLOC, use_an_incomplete_checkpoint);
}
