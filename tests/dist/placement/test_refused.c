/* Programs that compose wrongly, each of which trained with wrong gradients somewhere: they are
 * refused where they are written, with the axis, the argument and the missing conversion. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "test.h"

enum { BATCH = 4, WIDTH = 8 };

static void check_says(ls_tensor *t, ls_status status, const char *text)
{
    if (ls_tensor_status(t) != status || strstr(ls_error_message(), text) == NULL) {
        test_fail(__FILE__, __LINE__, "%s: \"%s\", not \"%s\"", ls_status_name(ls_tensor_status(t)),
                  ls_error_message(), text);
    }
}

/* What is composed wrongly is refused. */
static void check_refused(ls_tensor *t, const char *text)
{
    check_says(t, LS_ERR_PLACEMENT, text);
}

TEST_MAIN
