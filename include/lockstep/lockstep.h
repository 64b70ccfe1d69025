/* Everything: the framework's door. The lower doors are comm.h (collectives) and reducer.h (bring
 * your own backward); neither needs what is above it. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/autograd.h>
#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/ddp.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <lockstep/random.h>
#include <lockstep/reducer.h>
#include <lockstep/runtime.h>
#include <lockstep/state.h>
#include <lockstep/status.h>
#include <lockstep/store.h>
#include <lockstep/tensor.h>
#include <lockstep/types.h>
#include <lockstep/version.h>

#endif
