/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep data tokens`: the shards it writes, beside what encoding the files gives. */
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "scratch.h"
#include "script.h"

/* ---- reading shards ----------------------------------------------------------------------- */

static uint8_t *read_all(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        test_fail(__FILE__, __LINE__, "%s is not there", path);
    }
    uint8_t *data = malloc((size_t)8 << 20);
    CHECK(data != NULL);
    *bytes = fread(data, 1, (size_t)8 << 20, file);
    (void)fclose(file);
    return data;
}

static uint32_t number_at(const uint8_t *at, int bytes)
{
    uint32_t number = 0;
    for (int i = 0; i < bytes; i++) {
        number |= (uint32_t)at[i] << (8 * i);
    }
    return number;
}

/* Adds the tokens of FOLDER/tokens_NNNNNN.bin, checked as llm.c's reader checks them. */
static void add_shard(const char *folder, int number, tokens *all)
{
    char path[500];
    size_t bytes;
    (void)snprintf(path, sizeof path, "%s/tokens_%06d.bin", folder, number);
    uint8_t *data = read_all(path, &bytes);
    CHECK(bytes > 1024);
    CHECK_INT(number_at(data, 4), 20240520);
    CHECK_INT(number_at(data + 4, 4), 1);
    uint32_t count = number_at(data + 8, 4);
    CHECK_INT(bytes, 1024 + 2 * (size_t)count);
    for (int i = 12; i < 1024; i++) {
        CHECK(data[i] == 0);
    }
    all->ids = realloc(all->ids, (size_t)(all->count + count) * sizeof *all->ids);
    for (uint32_t i = 0; i < count; i++) {
        all->ids[all->count++] = (int32_t)number_at(data + 1024 + 2 * i, 2);
    }
    free(data);
}

static tokens shards_of(const char *folder, int count)
{
    tokens all = {0};
    char path[500];
    for (int i = 0; i < count; i++) {
        add_shard(folder, i, &all);
    }
    (void)snprintf(path, sizeof path, "%s/tokens_%06d.bin", folder, count);
    CHECK(access(path, F_OK) != 0);
    return all;
}

/* $F is the folder, $T the fixtures. */
static void run(const char *text, int status, const char *part)
{
    char whole[4096];
    (void)snprintf(whole, sizeof whole, "F=%s; T=%s; %s", scratch_folder(), fixture(""), text);
    check_script(whole, status, part);
}

/* ---- what is written ---------------------------------------------------------------------- */

TEST(bytes_of_files_follow_each_other_in_shards)
{
    scratch_begin();
    run("printf hello > a; printf world! > b; : > c; $L data tokens a b c --tokenizer bytes --out "
        "$F "
        "--shard-tokens 4",
        0, "11 bytes of 2 files: 11 tokens in 3 shards, ");
    tokens got = shards_of(scratch_folder(), 3);
    CHECK_INT(got.count, 11);
    for (int i = 0; i < 11; i++) {
        CHECK_INT(got.ids[i], "helloworld!"[i]);
    }
    ls_bytes_free(got.ids);
    scratch_end();
}

/* More than a few chunks, of lines as texts have them; a folder of files in the order of names. */
TEST(shards_hold_what_encoding_gives_for_any_number_of_threads)
{
    char path[400];
    size_t bytes;
    CHECK(ls_init(NULL) == LS_OK);
    ls_tokenizer *t = open_path(fixture("gpt2"));
    scratch_begin();
    run("mkdir $F/text $F/text/sub; i=0; while [ $i -lt 300 ]; do cat $T/../../../../LICENSE; "
        "echo \"line $i\"; i=$((i+1)); done > $F/text/b; echo one more > $F/text/sub/c; echo first "
        "> "
        "$F/text/a",
        0, "");
    for (int threads = 1; threads < 5; threads += 3) {
        char command[400];
        (void)snprintf(command, sizeof command,
                       "$L data tokens $F/text --tokenizer $T/gpt2 --out $F/out --force -j %d "
                       "--shard-tokens 500000",
                       threads);
        run(command, 0, "of 3 files");
        (void)snprintf(path, sizeof path, "%s/text/b", scratch_folder());
        uint8_t *text = read_all(path, &bytes);
        CHECK(bytes > (size_t)3 << 20);
        tokens want = encode(t, (const char *)text, bytes), first = encode(t, "first\n", 6);
        tokens last = encode(t, "one more\n", 9);
        int64_t count = 3 + first.count + want.count + last.count;
        (void)snprintf(path, sizeof path, "%s/out", scratch_folder());
        tokens got = shards_of(path, (int)((count + 499999) / 500000));
        int32_t begin = ls_tokenizer_id(t, "<|endoftext|>");
        CHECK_INT(got.count, count);
        CHECK(got.ids[0] == begin && got.ids[1 + first.count] == begin);
        CHECK(memcmp(got.ids + 2 + first.count, want.ids, (size_t)want.count * 4) == 0);
        CHECK_INT(got.ids[2 + first.count + want.count], begin);
        CHECK(memcmp(got.ids + 3 + first.count + want.count, last.ids, (size_t)last.count * 4) ==
              0);
        ls_bytes_free(got.ids);
        ls_bytes_free(want.ids);
        ls_bytes_free(first.ids);
        ls_bytes_free(last.ids);
        free(text);
    }
    ls_tokenizer_free(t);
    scratch_end();
    CHECK(ls_finalize() == LS_OK);
}

TEST(the_token_before_each_file_is_the_users_choice)
{
    scratch_begin();
    run("printf ab > a; $L data tokens a a --tokenizer bytes --out $F --begin z", 0,
        "4 bytes of 2 files: 6 tokens in 1 shard, ");
    tokens got = shards_of(scratch_folder(), 1);
    CHECK_INT(got.count, 6);
    CHECK(got.ids[0] == 'z' && got.ids[1] == 'a' && got.ids[3] == 'z' && got.ids[5] == 'b');
    ls_bytes_free(got.ids);
    run("printf ab > a; $L data tokens a --tokenizer bytes --out $F/2 --begin none", 0,
        " 2 tokens");
    run("printf ab > a; $L data tokens a --tokenizer bytes --out $F/3 --begin word", 1,
        "\"word\" is not a token");
    scratch_end();
}

/* ---- what is there already ---------------------------------------------------------------- */

TEST(shards_that_are_there_are_not_written_over)
{
    scratch_begin();
    run("printf old > a; $L data tokens a --tokenizer bytes --out $F --shard-tokens 1; cp -r $F "
        "kept; "
        "printf news > a; $L data tokens a --tokenizer bytes --out $F; s=$?; cmp "
        "kept/tokens_000000.bin "
        "$F/tokens_000000.bin || exit 9; exit $s",
        1, "holds tokens_000000.bin already");
    run("printf new > a; $L data tokens a --tokenizer bytes --out $F --force; ls $F", 0,
        "in 1 shard");
    tokens got = shards_of(scratch_folder(), 1); /* the other two of the old ones are gone */
    CHECK_INT(got.count, 3);
    CHECK_INT(got.ids[0], 'n');
    ls_bytes_free(got.ids);
    scratch_end();
}

TEST(a_run_that_fails_leaves_what_was_there_and_nothing_of_its_own)
{
    scratch_begin();
    run("printf old > a; printf '\\377' > b; $L data tokens a --tokenizer bytes --out $F; "
        "printf '{\"model\":{\"vocab\":{\"o\":0,\"l\":1,\"d\":2},\"merges\":[]},\"pre_tokenizer\":"
        "{\"type\":\"ByteLevel\",\"use_regex\":false}}' > t.json; "
        "$L data tokens a b --tokenizer t.json --out $F --force; s=$?; echo left: $(ls -A $F); "
        "exit $s",
        1, "left: tokens_000000.bin\n");
    run("printf ol > a; printf 'dx' >> a; "
        "printf '{\"model\":{\"vocab\":{\"o\":0,\"l\":1,\"d\":2},\"merges\":[]},\"pre_tokenizer\":"
        "{\"type\":\"ByteLevel\",\"use_regex\":false}}' > t.json; "
        "$L data tokens a --tokenizer t.json --out new",
        1, "\"a\": tokenizer: byte 0x78 at offset 3");
    run("printf old > a; : > $F/tokens_000007.bin.partial; $L data tokens a --tokenizer bytes "
        "--out "
        "$F --force && echo left: $(ls -A $F)",
        0, "left: tokens_000000.bin\n");
    scratch_end();
}

TEST(two_runs_do_not_write_into_one_folder)
{
    const test_output found = test_run("command -v flock", 10);
    free(found.text);
    if (found.status != 0) {
        SKIP("no flock");
    }
    scratch_begin();
    run("printf a > a; flock $F $L data tokens a --tokenizer bytes --out $F", 1,
        SAYS("data tokens: another process writes shards into \"%s\"; wait for it, or give another "
             "folder"));
    scratch_end();
}

TEST(texts_that_cannot_be_had_are_told)
{
    scratch_begin();
    run("$L data tokens nothing --tokenizer bytes --out $F", 1,
        "cannot read \"nothing\": No such file or directory");
    run(": > a; mkdir d; $L data tokens a d --tokenizer bytes --out $F", 1, "there is no text");
    run(": > a; mkdir -p d; $L data tokens a d --tokenizer bytes --out $F", 1,
        SAYS(" and the others"));
    run("echo a > a; $L data tokens a --tokenizer bytes --out $(printf %05000d 0)", 1,
        SAYS("data tokens: the folder's name is too long"));
    run("echo a > a; $L data tokens a --tokenizer bytes --out $F/no/where", 1, "cannot make");
    run("echo a > a; $L data tokens a --tokenizer bytes --out a", 1, "\"a\"");
    run("echo a > a; $L data tokens a --tokenizer no/where --out $F", 1, "no/where");
    scratch_end();
}

/* A sparse file of 8 TiB, 600 times. */
TEST(more_text_than_chunks_can_be_numbered_is_refused)
{
    test_output got = script("truncate -s 8T a || exit 77; $L data tokens $(yes a | head -600) "
                             "--tokenizer bytes --out f");
    if (got.status == 77) {
        SKIP("this file system has no files of 8 TiB");
    }
    CHECK_INT(got.status, 1);
    CHECK_SAYS(got.text, ": too much text; give fewer files at a time");
    free(got.text);
}

/* A folder that may be entered and written, but not read. */
TEST(a_folder_that_cannot_be_opened_for_its_lock_is_named)
{
    test_output got = script("echo a > a; chmod 755 . a; mkdir d; U=; [ $(id -u) != 0 ] || "
                             "{ command -v setpriv >/dev/null || exit 77; chown 60001 d; "
                             "U='setpriv --reuid 60001 --regid 60001 --clear-groups'; }; "
                             "chmod 300 d; $U $L data tokens a --tokenizer bytes --out d");
    if (got.status == 77) {
        SKIP("root needs setpriv to be another user");
    }
    CHECK_INT(got.status, 1);
    CHECK_SAYS(got.text, "lock the folder");
    free(got.text);
}

TEST_MAIN
