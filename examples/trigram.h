/* A byte-trigram count model: what a language model must beat to have learned more than which byte
 * follows which two. */
#ifndef EXAMPLES_TRIGRAM_H
#define EXAMPLES_TRIGRAM_H

#include <lockstep/data.h>

/* Fits on all files of `train` and evaluates on those of `held_out`: mean negative log-likelihood
 * in nats a byte of every byte but each file's first. LS_ERR_MEMORY when memory is out. */
ls_status trigram_loss(const ls_dataset *train, const ls_dataset *held_out, double *loss);

#endif
