/* What all data sets share: being freed by whoever made them. */
#include <lockstep/data.h>

void ls_dataset_free(ls_dataset *dataset)
{
    if (dataset && dataset->free) {
        dataset->free(dataset);
    }
}
