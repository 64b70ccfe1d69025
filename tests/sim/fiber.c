/* SPDX-License-Identifier: Apache-2.0 */
/* Switching stacks. x86-64 and aarch64 save what the calling convention asks for in a few
 * instructions; elsewhere the C library does it, with two system calls a switch. */
#include "sim/fiber.h"

#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef WITH_ASAN
static ls__fiber_context *left; /* by the last switch */
#endif

static void switch_begins(ls__fiber_context *from, const ls__fiber_context *to, int last)
{
#ifdef WITH_ASAN
    left = from;
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->stack, to->bytes);
#else
    (void)from;
    (void)to;
    (void)last;
#endif
}

/* `self` is NULL when a fiber runs for the first time. What the stack was that was left is news
 * only for the thread's own. */
static void switch_ended(ls__fiber_context *self)
{
#ifdef WITH_ASAN
    const void *stack = NULL;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self != NULL ? self->fake : NULL, &stack, &bytes);
    if (left->bytes == 0) {
        left->stack = (void *)(uintptr_t)stack;
        left->bytes = bytes;
    }
#else
    (void)self;
#endif
}

/* Put at the top of a new stack. */
typedef struct entry {
    void (*fn)(void *arg);
    void *arg;
} entry;

static void __attribute__((used, noreturn)) fiber_entry(entry *e)
{
    switch_ended(NULL);
    e->fn(e->arg);
    __builtin_unreachable();
}

#if defined(__x86_64__)

void ls__fiber_jump(void **save, void *to);
__asm__(".text\n"
        ".type ls__fiber_jump, @function\n"
        "ls__fiber_jump:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size ls__fiber_jump, .-ls__fiber_jump\n"
        /* The first jump to a new stack arrives here, with the entry in rbx. */
        ".type ls__fiber_begin, @function\n"
        "ls__fiber_begin:\n"
        "    movq %rbx, %rdi\n"
        "    call fiber_entry\n"
        "    ud2\n"
        ".size ls__fiber_begin, .-ls__fiber_begin\n");
void ls__fiber_begin(void);

static void *first_frame(char *top, entry *e)
{
    /* r15 r14 r13 r12 rbx rbp, the return address; then the stack is aligned for a call. */
    uintptr_t *frame = (uintptr_t *)(void *)(top - 9 * sizeof(uintptr_t));
    memset(frame, 0, 8 * sizeof *frame);
    frame[4] = (uintptr_t)e;
    frame[6] = (uintptr_t)ls__fiber_begin;
    return frame;
}

#elif defined(__aarch64__)

void ls__fiber_jump(void **save, void *to);
__asm__(".text\n"
        ".type ls__fiber_jump, %function\n"
        "ls__fiber_jump:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size ls__fiber_jump, .-ls__fiber_jump\n"
        ".type ls__fiber_begin, %function\n"
        "ls__fiber_begin:\n"
        "    mov x0, x19\n"
        "    bl fiber_entry\n"
        ".size ls__fiber_begin, .-ls__fiber_begin\n");
void ls__fiber_begin(void);

static void *first_frame(char *top, entry *e)
{
    uintptr_t *frame = (uintptr_t *)(void *)(top - 160);
    memset(frame, 0, 160);
    frame[0] = (uintptr_t)e;
    frame[11] = (uintptr_t)ls__fiber_begin;
    return frame;
}

#else

#include <ucontext.h>

typedef struct frame {
    ucontext_t context;
} frame;

static void begin(unsigned high, unsigned low)
{
    fiber_entry((entry *)((uintptr_t)high << 16 << 16 | (uintptr_t)low));
}

static void *first_frame(char *top, entry *e)
{
    const uintptr_t at = (uintptr_t)e;
    frame *f = (frame *)(void *)(((uintptr_t)top - sizeof *f) & ~(uintptr_t)63);
    (void)getcontext(&f->context);
    f->context.uc_stack.ss_sp = top - 65536;
    f->context.uc_stack.ss_size = (size_t)((char *)f - (top - 65536));
    makecontext(&f->context, (void (*)(void))begin, 2, (unsigned)(at >> 16 >> 16), (unsigned)at);
    return f;
}

static void ls__fiber_jump(void **save, void *to)
{
    frame here;
    *save = &here;
    (void)swapcontext(&here.context, &((frame *)to)->context);
}

#endif

void ls__fiber_prepare(ls__fiber_context *context, void *stack, size_t bytes, void (*fn)(void *arg),
                       void *arg)
{
#ifdef WITH_ASAN
    /* Who used it before may have died in the middle of a function. */
    ASAN_UNPOISON_MEMORY_REGION((char *)stack + 4096, bytes - 4096);
#endif
    char *top = (char *)stack + bytes - 64;
    entry *e = (entry *)(void *)top;
    *e = (entry){fn, arg};
    *context = (ls__fiber_context){.sp = first_frame(top, e), .stack = stack, .bytes = bytes};
}

void ls__fiber_switch(ls__fiber_context *from, ls__fiber_context *to, int last)
{
    switch_begins(from, to, last);
    ls__fiber_jump(&from->sp, to->sp);
    switch_ended(from);
}
