/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps (device/captured.h) as graphs of the driver. A capture is of one thread: what
 * others do meanwhile is theirs, but for work that they put into the device's stream. An error
 * during a capture is the capture's, and the device stays usable. */
#include "cuda/capture.h"

#include <stdio.h>

#include "cuda/driver.h"
#include "cuda/launch.h"

static _Thread_local bool capturing;
static _Thread_local char failed[LS__DEVICE_ERROR_MAX]; /* the first error; "": none */
static const float *gate; /* of the capture, there is one at a time; NULL: none yet */

bool ls__cuda_capturing(void)
{
    return capturing;
}

void ls__cuda_capture_fail(const char *what, const char *why)
{
    if (failed[0] == '\0') {
        snprintf(failed, sizeof failed, "%s: %s", what, why);
    }
}

const float *ls__cuda_capture_gate(void)
{
    return capturing ? gate : NULL;
}

/* Notes an error of the capture; true: go on. */
static bool works(int code, const char *what)
{
    if (code != LS__CU_SUCCESS) {
        ls__cuda_capture_fail(what, ls__cu_text(code));
    }
    return code == LS__CU_SUCCESS;
}

static void start_gate(const ls__step_gate *given, ls_stream *stream)
{
    const struct cuda_step_gate_args k = {.of = *given};
    ls__cuda_launch(CUDA_step_gate, per_row(1), &k, stream);
    gate = (const float *)given->slot + LS__STEP_GATE_FACTOR;
}

static void start_verdict(int64_t *to, const void *checks, int64_t count, int64_t bytes,
                          int64_t rank, ls_stream *stream)
{
    const struct cuda_step_verdict_args k = {
        .to = to, .checks = checks, .count = count, .bytes = bytes, .rank = rank};
    ls__cuda_launch(CUDA_step_verdict, per_row(1), &k, stream);
}

/* The driver loads a kernel when it is first started, which it must not have to do in a capture:
 * here are those that only captured steps start. */
static void load_kernels(const ls__device *device)
{
    const ls__kernels *k = device->kernels;
    float *room = ls__cuda_self.workspace;
    const ls__factor one = {room, 1.0, 1.0};
    start_gate(&(ls__step_gate){.slot = room, .max_norm = 1.0}, device->stream);
    start_verdict((int64_t *)(void *)room, room, 0, sizeof *room, 0, device->stream);
    k->axpby_by(room, room, 1, one, 0.0f, device->stream);
    k->axpby_bf16_by((ls__bfloat16 *)(void *)room, (const ls__bfloat16 *)(const void *)room, 1, one,
                     0.0f, device->stream);
}

static bool begin(const ls__device *device, char why[])
{
    ls__cuda_enter();
    load_kernels(device);
    failed[0] = '\0';
    gate = NULL;
    capturing = works(
        ls__cu_driver.cuStreamBeginCapture_v2((void *)device->stream, LS__CU_CAPTURE_THREAD_LOCAL),
        "cuStreamBeginCapture");
    snprintf(why, LS__DEVICE_ERROR_MAX, "%s", failed);
    return capturing;
}

static void *end(const ls__device *device, char why[])
{
    void *graph = NULL, *executable = NULL;
    capturing = false;
    if (works(ls__cu_driver.cuStreamEndCapture((void *)device->stream, &graph),
              "cuStreamEndCapture") &&
        failed[0] == '\0') {
        (void)works(ls__cu_driver.cuGraphInstantiateWithFlags(&executable, graph, 0),
                    "cuGraphInstantiate");
    }
    if (graph != NULL) {
        (void)works(ls__cu_driver.cuGraphDestroy(graph), "cuGraphDestroy");
    }
    snprintf(why, LS__DEVICE_ERROR_MAX, "%s", failed);
    return executable;
}

static void launch(const ls__device *device, void *graph)
{
    ls__cuda_enter();
    ls__cuda_check(ls__cu_driver.cuGraphLaunch(graph, (void *)device->stream), "cuGraphLaunch");
}

static void destroy(const ls__device *device, void *graph)
{
    device->synchronize(device);
    ls__cuda_check(ls__cu_driver.cuGraphExecDestroy(graph), "cuGraphExecDestroy");
}

const ls__device_capture ls__cuda_capture = {.begin = begin,
                                             .end = end,
                                             .launch = launch,
                                             .free = destroy,
                                             .gate = start_gate,
                                             .verdict = start_verdict};
