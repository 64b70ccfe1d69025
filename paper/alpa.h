/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of Alpa's figure (alpa.c): what a search of one model on a number of devices
 * has found. */
#ifndef PAPER_ALPA_H
#define PAPER_ALPA_H

#include <stdbool.h>

#include "cost/cluster.h"
#include "cost/processor.h"

#define ALPA_CLUSTER "8:150gbyte,8:25gbit"
#define ALPA_MEMORY 16e9 /* bytes of a device */
#define ALPA_PLAN_BYTES 160

typedef enum alpa_kind { ALPA_INTRA, ALPA_INTER, ALPA_BOTH, ALPA_KINDS } alpa_kind;

typedef struct alpa_found {
    double step;   /* seconds; INFINITY: no plan fits */
    double memory; /* bytes of the device that has most */
    char plan[ALPA_PLAN_BYTES];
} alpa_found;

typedef struct alpa_machine {
    ls__cluster cluster;
    ls__processor device;
    int devices;
} alpa_machine;

/* A wide ResNet (Zagoruyko and Komodakis 2016) of 50 or 101 layers for images of 224 x 224. */
typedef struct alpa_resnet {
    int layers, channels, width;
} alpa_resnet;

/* alpa_resnet.c */
#define ALPA_IMAGES 1536 /* of a step */
double alpa_resnet_parameters(const alpa_resnet *net);
double alpa_resnet_flops(const alpa_resnet *net); /* of an image, forward and backward */
/* False: no memory, or a device that cannot be. */
bool alpa_resnet_find(const alpa_resnet *net, const alpa_machine *m, alpa_kind kind,
                      alpa_found *out);

#endif
