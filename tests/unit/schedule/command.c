/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep plan schedule`: tables that it prints and reads, and pictures. Its words stand in
 * tests/golden. */
#include "script.h"
#include "test.h"

/* $L plan schedule, without the name, the formulas and what follows. */
#define DIAGRAM "diagram() { $L plan schedule \"$@\" | sed -n '3,/^$/p'; }\n"

TEST(a_printed_table_is_a_file_with_the_same_diagram)
{
    check_script(DIAGRAM
                 "for name in naive gpipe 1f1b interleaved zb-h1 pipedream pipedream-2bw; do\n"
                 "  $L plan schedule $name -p 2 -m 4 --table > $D/$name.txt || exit 1\n"
                 "  diagram $name -p 2 -m 4 > $D/a; diagram $D/$name.txt > $D/b\n"
                 "  grep -q 'rank 1 .*F3' $D/a && cmp $D/a $D/b || exit 1\n"
                 "  $L plan schedule $D/$name.txt --table | cmp - $D/$name.txt || exit 1\n"
                 "done\n"
                 "$L plan schedule gpipe --replicas 2,1 -m 4 --table > $D/r.txt\n"
                 "diagram gpipe --replicas 2,1 -m 4 > $D/a; diagram $D/r.txt > $D/b\n"
                 "cmp $D/a $D/b && $L plan schedule $D/r.txt --table | cmp - $D/r.txt || exit 1\n"
                 "echo all equal",
                 0, "all equal");
}

/* The same diagram, whatever the unit of time. */
TEST(a_column_divides_all_times)
{
    check_script(DIAGRAM
                 "d() { diagram 1f1b -p 3 -m 4 \"$@\" | tail -n +2; }\n" /* without the scale */
                 "d > $D/a; d --forward 1e-9 --backward 2e-9 | cmp - $D/a || exit 1\n"
                 "d --forward 1e8 --backward 2e8 | cmp - $D/a || exit 2\n"
                 "d --forward 0.1 --backward 0.2 | cmp - $D/a || exit 3\n"
                 "$L plan schedule 1f1b --forward 0.2 --backward 0.3 | grep 'a column is 0.1$'\n"
                 "$L plan schedule 1f1b --backward 3 | grep -q 'a column is 1$' || exit 4\n"
                 "$L plan schedule zb-h1 --backward 3 | grep -q 'a column is 0.5$' || exit 5\n"
                 "$L plan schedule 1f1b --forward 0 --backward 0 | grep 'makespan  *0  *0 '",
                 0, "a column is 0.1");
}

TEST(a_picture_has_a_box_for_each_computation)
{
    check_script("$L plan schedule gpipe -p 3 -m 4 --recompute --svg $D/x.svg > /dev/null\n"
                 "head -1 $D/x.svg | grep -q '^<svg xmlns=' && tail -1 $D/x.svg | grep '^</svg>$'\n"
                 "echo $(grep -c '<rect x=' $D/x.svg) boxes",
                 0, "36 boxes");
}

TEST(a_picture_that_does_not_fit_on_the_disk_is_an_error)
{
    check_script("$L plan schedule gpipe --svg /dev/full > /dev/null", 1,
                 SAYS("lockstep: \"%s\" cannot be written: %s"));
}

/* What lies there is replaced: a link is not followed, and a pipe is not waited for. */
TEST(a_picture_is_a_new_file)
{
    check_script("echo precious > x; ln -s x l; mkfifo p\n"
                 "for f in l p; do $L plan schedule gpipe --svg $f >/dev/null || exit 1\n"
                 "[ -f $f ] && [ ! -L $f ] && grep -q '^<svg' $f || exit 2; done; cat x",
                 0, "precious");
}

TEST_MAIN
