/* Scalars in the files that TensorBoard shows: `tensorboard --logdir FOLDER`. */
#ifndef PROGRAMS_TENSORBOARD_H
#define PROGRAMS_TENSORBOARD_H

#include <stdint.h>

#define TENSORBOARD_TAG_MAX 63     /* bytes; longer tags are truncated */
#define TENSORBOARD_SCALARS_MAX 16 /* per call */

typedef struct tensorboard tensorboard;

typedef struct tensorboard_scalar {
    char tag[TENSORBOARD_TAG_MAX +
             1];  /* "train/loss": charts with the same word before / are grouped */
    double value; /* stored as float32 */
} tensorboard_scalar;

/* Makes a new event file in `folder`, which is created if it does not exist. With `start` > 0
 * TensorBoard drops the steps after `start` of earlier files. Here and below, a failure ends the
 * program with an error text. */
tensorboard *tensorboard_open(const char *folder, int64_t start);
/* Writes the scalars of a step to the system before it returns. NULL: does nothing. */
void tensorboard_add(tensorboard *board, int64_t step, const tensorboard_scalar *scalars,
                     int count);
void tensorboard_close(tensorboard *board); /* NULL is allowed */

#endif
