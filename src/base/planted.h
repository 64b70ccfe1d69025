/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that can be switched on in the simulation's build of the library, to prove that the
 * simulation finds such faults (tests/sim, `simulate --planted NAME`). Elsewhere the
 * condition is the constant false: no code is left of it. */
#ifndef LS_BASE_PLANTED_H
#define LS_BASE_PLANTED_H

enum {
    LS__BUG_NONE,
    LS__BUG_COMPARISON, /* descriptors are not compared */
    LS__BUG_DEADLINE,   /* an operation's deadline is not looked at */
    LS__BUG_FENCE,      /* a program's last fence is not waited for */
    LS__BUG_WAKE,       /* the last to arrive at a fence wakes nobody */
    LS__BUG_GENERATION, /* a slot is written while peers may still read what it held before */
    LS__BUG_TAG,        /* tags are not compared */
    LS__BUG_DAMAGE,     /* the checksum of a frame is not looked at */
    LS__BUG_WORDS,      /* a signal that killed a rank is told as an exit */
    LS__BUG_OPERATOR,   /* the largest of int16 is the smallest */
    LS__BUG_SLOT,       /* a slice does not wait for its STAGE slot */
    LS__BUG_COUNT
};

#ifndef LS__PLANTED
#define LS__PLANTED(bug) 0
#endif

#endif
