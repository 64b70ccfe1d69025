/* SPDX-License-Identifier: Apache-2.0 */
/* What the backend `nccl` calls of NVIDIA's driver (libcuda.so.1) and of NCCL (libnccl.so.2), so
 * that it builds without their headers and runs where they are not installed. Written for the ABI
 * of CUDA 12 and later and NCCL 2.19 and later, whose functions and values keep their meaning;
 * tests/tidy/test_cuda_headers.py compares them with the headers where these are.
 *
 * The driver's interface is used and not that of the runtime: it comes with every GPU, it has one
 * version in a process whichever runtimes the program links, and the runtime's streams and events
 * are the driver's. */
#ifndef LS_COMM_NCCL_ABI_H
#define LS_COMM_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

#define LS__NCCL_VERSION_MIN 21900 /* 2.19: ncclMemAlloc, ncclCommRegister */

/* ---- CUDA ---------------------------------------------------------------------------------- */

typedef struct CUctx_st *ls__cuda_context;
typedef struct CUstream_st *ls__cuda_stream;
typedef struct CUevent_st *ls__cuda_event;
typedef uintptr_t ls__cuda_pointer; /* 64 bits on every system that has CUDA */

#define LS__CUDA_OK 0
#define LS__CUDA_NOT_READY 600
#define LS__CUDA_STREAM_NON_BLOCKING 1u
#define LS__CUDA_EVENT_NO_TIMING 2u
#define LS__CUDA_POINTER_MEMORY_TYPE 2
#define LS__CUDA_POINTER_IS_MANAGED 8
#define LS__CUDA_MEMORY_DEVICE 2u

/* X(name here, symbol, arguments); all return an int, 0: success. */
#define LS__CUDA_FUNCTIONS(X)                                                                      \
    X(init, cuInit, (unsigned))                                                                    \
    X(error_name, cuGetErrorName, (int, const char **))                                            \
    X(device_count, cuDeviceGetCount, (int *))                                                     \
    X(device_get, cuDeviceGet, (int *, int))                                                       \
    X(device_bus_id, cuDeviceGetPCIBusId, (char *, int, int))                                      \
    X(context_retain, cuDevicePrimaryCtxRetain, (ls__cuda_context *, int))                         \
    X(context_get, cuCtxGetCurrent, (ls__cuda_context *))                                          \
    X(context_set, cuCtxSetCurrent, (ls__cuda_context))                                            \
    X(context_device, cuCtxGetDevice, (int *))                                                     \
    X(priorities, cuCtxGetStreamPriorityRange, (int *, int *))                                     \
    X(stream_create, cuStreamCreateWithPriority, (ls__cuda_stream *, unsigned, int))               \
    X(stream_destroy, cuStreamDestroy_v2, (ls__cuda_stream))                                       \
    X(stream_wait, cuStreamWaitEvent, (ls__cuda_stream, ls__cuda_event, unsigned))                 \
    X(stream_synchronize, cuStreamSynchronize, (ls__cuda_stream))                                  \
    X(event_create, cuEventCreate, (ls__cuda_event *, unsigned))                                   \
    X(event_record, cuEventRecord, (ls__cuda_event, ls__cuda_stream))                              \
    X(event_query, cuEventQuery, (ls__cuda_event))                                                 \
    X(event_destroy, cuEventDestroy_v2, (ls__cuda_event))                                          \
    X(pointer_get, cuPointerGetAttribute, (void *, int, ls__cuda_pointer))                         \
    X(set, cuMemsetD8Async, (ls__cuda_pointer, unsigned char, size_t, ls__cuda_stream))            \
    X(copy, cuMemcpyDtoDAsync_v2, (ls__cuda_pointer, ls__cuda_pointer, size_t, ls__cuda_stream))

/* ---- NCCL ---------------------------------------------------------------------------------- */

typedef struct ncclComm *ls__nccl_comm;
typedef struct ls__nccl_id {
    char bytes[128];
} ls__nccl_id;

typedef enum ls__nccl_result {
    LS__NCCL_OK = 0,
    LS__NCCL_REMOTE_ERROR = 6,
    LS__NCCL_IN_PROGRESS = 7
} ls__nccl_result;

typedef enum ls__nccl_type {
    LS__NCCL_INT8 = 0,
    LS__NCCL_UINT8 = 1,
    LS__NCCL_INT32 = 2,
    LS__NCCL_UINT32 = 3,
    LS__NCCL_INT64 = 4,
    LS__NCCL_UINT64 = 5,
    LS__NCCL_FLOAT16 = 6,
    LS__NCCL_FLOAT32 = 7,
    LS__NCCL_FLOAT64 = 8,
    LS__NCCL_BFLOAT16 = 9
} ls__nccl_type;

typedef enum ls__nccl_op {
    LS__NCCL_SUM = 0,
    LS__NCCL_PROD = 1,
    LS__NCCL_MAX = 2,
    LS__NCCL_MIN = 3,
    LS__NCCL_AVG = 4
} ls__nccl_op; /* larger ones are made by ncclRedOpCreatePreMulSum */

#define LS__NCCL_SCALAR_HOST 1

/* The part of ncclConfig_t that NCCL 2.18 has; later versions add fields at the end and read of an
 * older one as much as `size` says. */
typedef struct ls__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} ls__nccl_config;

#define LS__NCCL_CONFIG_MAGIC 0xcafebeefu
#define LS__NCCL_CONFIG_VERSION 21800u
#define LS__NCCL_UNDEFINED (-2147483647 - 1)

#define LS__NCCL_ROOTED                                                                            \
    (const void *, void *, size_t, ls__nccl_type, int, int, ls__nccl_comm, ls__cuda_stream)
/* X(name here, symbol, arguments); all return an ls__nccl_result. */
#define LS__NCCL_FUNCTIONS(X)                                                                      \
    X(version, ncclGetVersion, (int *))                                                            \
    X(unique_id, ncclGetUniqueId, (ls__nccl_id *))                                                 \
    X(init, ncclCommInitRankConfig, (ls__nccl_comm *, int, ls__nccl_id, int, ls__nccl_config *))   \
    X(finalize, ncclCommFinalize, (ls__nccl_comm))                                                 \
    X(destroy, ncclCommDestroy, (ls__nccl_comm))                                                   \
    X(abort, ncclCommAbort, (ls__nccl_comm))                                                       \
    X(async_error, ncclCommGetAsyncError, (ls__nccl_comm, int *))                                  \
    X(alloc, ncclMemAlloc, (void **, size_t))                                                      \
    X(free, ncclMemFree, (void *))                                                                 \
    X(enroll, ncclCommRegister, (ls__nccl_comm, void *, size_t, void **))                          \
    X(dismiss, ncclCommDeregister, (ls__nccl_comm, void *))                                        \
    X(op_create, ncclRedOpCreatePreMulSum, (int *, void *, ls__nccl_type, int, ls__nccl_comm))     \
    X(op_destroy, ncclRedOpDestroy, (int, ls__nccl_comm))                                          \
    X(all_reduce, ncclAllReduce,                                                                   \
      (const void *, void *, size_t, ls__nccl_type, int, ls__nccl_comm, ls__cuda_stream))          \
    X(reduce_scatter, ncclReduceScatter,                                                           \
      (const void *, void *, size_t, ls__nccl_type, int, ls__nccl_comm, ls__cuda_stream))          \
    X(all_gather, ncclAllGather,                                                                   \
      (const void *, void *, size_t, ls__nccl_type, ls__nccl_comm, ls__cuda_stream))               \
    X(broadcast, ncclBroadcast,                                                                    \
      (const void *, void *, size_t, ls__nccl_type, int, ls__nccl_comm, ls__cuda_stream))          \
    X(reduce, ncclReduce, LS__NCCL_ROOTED)                                                         \
    X(send, ncclSend, (const void *, size_t, ls__nccl_type, int, ls__nccl_comm, ls__cuda_stream))  \
    X(recv, ncclRecv, (void *, size_t, ls__nccl_type, int, ls__nccl_comm, ls__cuda_stream))        \
    X(group_start, ncclGroupStart, (void))                                                         \
    X(group_end, ncclGroupEnd, (void))

/* Their names are the same in every version, and their results are texts. */
typedef const char *ls__nccl_text(int result);
typedef const char *ls__nccl_last_text(ls__nccl_comm comm);

#define LS__MEMBER(name, symbol, arguments) int(*name) arguments;
typedef struct ls__cuda_library {
    LS__CUDA_FUNCTIONS(LS__MEMBER)
} ls__cuda_library;

typedef struct ls__nccl_library {
    LS__NCCL_FUNCTIONS(LS__MEMBER)
    ls__nccl_text *error_text;
    ls__nccl_last_text *last_text;
} ls__nccl_library;
#undef LS__MEMBER

#endif
