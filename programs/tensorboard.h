/* Scalars in the files that TensorBoard shows: `tensorboard --logdir FOLDER`. */
#ifndef PROGRAMS_TENSORBOARD_H
#define PROGRAMS_TENSORBOARD_H

#include <stdint.h>

#define TENSORBOARD_TAG_MAX 63     /* bytes; a longer tag is cut */
#define TENSORBOARD_SCALARS_MAX 16 /* of one call */

typedef struct tensorboard tensorboard;

typedef struct tensorboard_scalar {
    char tag[TENSORBOARD_TAG_MAX +
             1];  /* "train/loss": charts with one word before / stand together */
    double value; /* kept as float32 */
} tensorboard_scalar;

/* Makes a new event file in `folder`, which is made if it is missing. With `start` > 0 TensorBoard
 * drops what files before it say of steps behind `start`. What cannot be done ends the program with
 * words, here and below. */
tensorboard *tensorboard_open(const char *folder, int64_t start);
/* The scalars of a step; on the disk's side of this process when it returns. NULL: nothing. */
void tensorboard_add(tensorboard *board, int64_t step, const tensorboard_scalar *scalars,
                     int count);
void tensorboard_close(tensorboard *board); /* NULL is allowed */

#endif
