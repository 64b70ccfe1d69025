/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with checkpoints, and files that somebody damaged. */
#include <fcntl.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "golden.h"

#include "base/arena.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_text.h"
#include "checkpoint/safetensors.h"

static double value[6] = {1, 2, 3, 4, 5, 6};
static int64_t number = 7;
static int64_t rows = 3;
static ls_dtype dtype = LS_FLOAT64;
static const char *tensor_name = "weight", *number_name = "count";
static bool is_float;

static ls_status show(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    static double real = 0.5;
    const ls_state_tensor tensor = {
        .dtype = dtype, .ndim = 2, .global = {rows, 2}, .local = {rows, 2}, .data = value};
    (void)object;
    (void)prefix;
    if (tensor_name != NULL) {
        LS_TRY(visitor->tensor(visitor->self, tensor_name, &tensor));
    }
    if (is_float) {
        return visitor->float64(visitor->self, number_name, &real);
    }
    return number_name != NULL ? visitor->int64(visitor->self, number_name, &number) : LS_OK;
}

static const ls_checkpoint_item items[] = {
    {.size = sizeof(ls_checkpoint_item), .prefix = "", .object = value, .state = show},
    {.size = sizeof(ls_checkpoint_item), .prefix = "", .object = value, .state = show}};

static ls_checkpoint *opened(void)
{
    ls_checkpoint *c = NULL;
    MUST(ls_checkpoint_new(golden_folder(), ls_world(),
                           LS_OPTIONS(ls_checkpoint_options, .async = false), &c));
    return c;
}

static void saved(int64_t step)
{
    ls_checkpoint *c = opened();
    MUST(ls_checkpoint_save(c, step, items, 1));
    MUST(ls_checkpoint_free(c));
}

static void show_load(const char *what)
{
    int64_t step;
    ls_checkpoint *c = opened();
    golden_show(what, ls_checkpoint_load(c, items, 1, &step));
    (void)ls_checkpoint_free(c);
}

/* A file of the newest checkpoint. */
static const char *part(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/step-00000005/%s", golden_folder(), name);
    return path;
}

GOLDEN(arguments_of_checkpoints)
{
    int64_t step;
    ls_checkpoint *c = NULL;
    SHOW(ls_checkpoint_new("", ls_world(), NULL, &c));
    SHOW(ls_checkpoint_new("folder", NULL, NULL, &c));
    SHOW(ls_checkpoint_new("folder", ls_world(), LS_OPTIONS(ls_checkpoint_options, .keep = 0), &c));
    SHOW(ls_checkpoint_new("folder", ls_world(), LS_OPTIONS(ls_checkpoint_options, .timeout_ms = 0),
                           &c));
    SHOW(ls_checkpoint_new("/dev/null/folder", ls_world(), NULL, &c));
    SHOW(ls_checkpoint_save(NULL, 1, items, 1));
    SHOW(ls_checkpoint_load(NULL, items, 1, &step));
    SHOW(ls_checkpoint_wait(NULL));
    c = opened();
    SHOW(ls_checkpoint_load(c, items, 1, &step));
    SHOW(ls_checkpoint_save(c, -1, items, 1));
    SHOW(ls_checkpoint_save(c, 1, items, 2));
    SHOW(ls_checkpoint_save(c, 1, &(const ls_checkpoint_item){.prefix = "net"}, 1));
    const ls_checkpoint_item bare = {.size = sizeof bare, .prefix = "net"};
    SHOW(ls_checkpoint_save(c, 1, &bare, 1));
    (void)ls_checkpoint_free(c);
}

GOLDEN(opened_for_loading_only)
{
    ls_checkpoint *c = NULL;
    SHOW(ls_checkpoint_new("/does/not/exist", ls_world(),
                           LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    saved(5);
    MUST(ls_checkpoint_new(golden_folder(), ls_world(),
                           LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    SHOW(ls_checkpoint_save(c, 6, items, 1));
    (void)ls_checkpoint_free(c);
}

GOLDEN(state_that_cannot_be_saved)
{
    ls_checkpoint *c = opened();
    tensor_name = "__metadata__";
    SHOW(ls_checkpoint_save(c, 1, items, 1));
    tensor_name = "weight";
    dtype = (ls_dtype)55;
    SHOW(ls_checkpoint_save(c, 1, items, 1));
    dtype = LS_FLOAT64;
    tensor_name = "\xff\xfe";
    SHOW(ls_checkpoint_save(c, 1, items, 1));
    (void)ls_checkpoint_free(c);
}

static int walks;

static ls_status show_less_each_time(void *object, const char *prefix, const ls_state_visitor *v)
{
    (void)object;
    (void)prefix;
    return v->int64(v->self, ++walks % 2 == 1 ? "first" : "second", &number);
}

static ls_status show_another_tensor(void *object, const char *prefix, const ls_state_visitor *v)
{
    (void)object;
    (void)prefix;
    tensor_name = ++walks % 2 == 1 ? "first" : "second";
    return show(object, prefix, v);
}

GOLDEN(state_that_changes_while_it_is_saved)
{
    ls_checkpoint *c = opened();
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = value, .state = show_less_each_time};
    const ls_checkpoint_item other = {.size = sizeof(ls_checkpoint_item),
                                      .prefix = "",
                                      .object = value,
                                      .state = show_another_tensor};
    SHOW(ls_checkpoint_save(c, 1, &item, 1));
    walks = 0;
    SHOW(ls_checkpoint_save(c, 1, &other, 1));
    (void)ls_checkpoint_free(c);
}

GOLDEN(state_that_changes_while_it_is_loaded)
{
    int64_t step;
    const ls_checkpoint_item item = {.size = sizeof(ls_checkpoint_item),
                                     .prefix = "",
                                     .object = value,
                                     .state = show_another_tensor};
    tensor_name = "first";
    saved(5);
    ls_checkpoint *c = opened();
    walks = 0;
    SHOW(ls_checkpoint_load(c, &item, 1, &step));
    (void)ls_checkpoint_free(c);
}

GOLDEN(a_folder_that_another_job_has_locked)
{
    ls_checkpoint *c = NULL;
    saved(5);
    char path[256];
    (void)snprintf(path, sizeof path, "%s/lock", golden_folder());
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        exit(3);
    }
    SHOW(ls_checkpoint_new(golden_folder(), ls_world(), NULL, &c));
    (void)close(fd);
}

GOLDEN(a_folder_of_another_run)
{
    saved(9);
    ls_checkpoint *c = opened();
    SHOW(ls_checkpoint_save(c, 5, items, 1));
    ls_checkpoint *second = NULL;
    SHOW(ls_checkpoint_new(golden_folder(), ls_world(), NULL, &second));
    (void)ls_checkpoint_free(c);
}

GOLDEN(another_model_than_was_saved)
{
    saved(5);
    tensor_name = "bias";
    show_load("a tensor it has not");
    tensor_name = "weight";
    rows = 2;
    show_load("another shape");
    rows = 3;
    number_name = "updates";
    show_load("a scalar it has not");
    number_name = "count";
    is_float = true;
    show_load("a scalar of another type");
    is_float = false;
    tensor_name = NULL;
    show_load("a tensor too many");
    tensor_name = "weight";
    number_name = NULL;
    show_load("a scalar too many");
}

GOLDEN(damaged_files)
{
    saved(5);
    const char *path = part("scalars.json");
    FILE *file = fopen(path, "ab");
    (void)fputc('x', file);
    (void)fclose(file);
    show_load("a byte too many");
    saved(5);
    file = fopen(path, "r+b");
    (void)fputc('[', file);
    (void)fclose(file);
    show_load("a byte changed");
    saved(5);
    if (truncate(part("manifest.json"), 0) != 0) {
        exit(3);
    }
    show_load("an empty manifest");
    saved(5);
    (void)unlink(part("state-00001-of-00001.safetensors"));
    show_load("a file missing");
    saved(5);
    (void)unlink(part("scalars.json"));
    if (mkdir(part("scalars.json"), 0700) != 0) {
        exit(3);
    }
    show_load("a folder in the place of a file");
}

GOLDEN(a_damaged_one_that_may_have_been_removed)
{
    int64_t step;
    ls_checkpoint *c = NULL;
    saved(4);
    saved(5);
    (void)unlink(part("scalars.json"));
    MUST(ls_checkpoint_new(golden_folder(), ls_world(),
                           LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    SHOW(ls_checkpoint_load(c, items, 1, &step));
    (void)ls_checkpoint_free(c);
}

GOLDEN(a_damaged_one_and_one_before)
{
    saved(4);
    saved(5);
    (void)unlink(part("scalars.json"));
    show_load("the one before is taken");
}

/* A manifest whose hash is right again after `change`. */
static void remade(void (*change)(json_t *manifest))
{
    char zeros[LS__DIGEST_HEX + 1];
    json_error_t error;
    size_t bytes;
    saved(5);
    json_t *manifest = json_load_file(part("manifest.json"), 0, &error);
    change(manifest);
    memset(zeros, '0', LS__DIGEST_HEX);
    zeros[LS__DIGEST_HEX] = '\0';
    (void)json_object_set_new(manifest, "hash", json_string(zeros));
    char *text = ls__manifest_text(manifest, &bytes);
    (void)golden_file("step-00000005/manifest.json", text, bytes);
    free(text);
    json_decref(manifest);
}

static void list_scalars(json_t *manifest)
{
    uint8_t hash[LS__DIGEST_BYTES];
    ls__digest digest;
    ls__digest_init(&digest);
    ls__digest_add(&digest, "[]", 2);
    (void)ls__digest_end(&digest, hash);
    (void)golden_file("step-00000005/scalars.json", "[]", 2);
    (void)ls__manifest_add_file(manifest, "scalars.json", 2, hash);
}

static void drop_scalars(json_t *manifest)
{
    (void)json_object_del(json_object_get(manifest, "files"), "scalars.json");
}

static void rename_type(json_t *manifest)
{
    json_t *tensor = json_object_get(json_object_get(manifest, "tensors"), "weight");
    (void)json_object_set_new(tensor, "dtype", json_string("I64"));
}

GOLDEN(a_manifest_that_was_written_wrongly)
{
    remade(list_scalars);
    show_load("scalars that are a list");
    remade(drop_scalars);
    show_load("no scalars");
    remade(rename_type);
    show_load("another type than the file's");
}

GOLDEN(a_checkpoint_under_another_name)
{
    char name[256];
    saved(5);
    (void)snprintf(name, sizeof name, "%s/step-00000007", golden_folder());
    (void)rename(part(""), name);
    show_load("step-00000007 holds step 5");
}

/* ---- files that fail ------------------------------------------------------------------------- */

static ls_status use_files(void)
{
    int64_t step;
    ls_checkpoint *c = NULL;
    ls_status status =
        ls_checkpoint_new(golden_new_folder(), ls_world(),
                          LS_OPTIONS(ls_checkpoint_options, .async = false, .keep = 1), &c);
    for (int i = 0; status == LS_OK && i < 3; i++) {
        status = ls_checkpoint_save(c, 1 + i / 2, items, 1);
    }
    if (status == LS_OK) {
        status = ls_checkpoint_load(c, items, 1, &step);
    }
    if (status < 0) {
        golden_show_once(status);
    }
    (void)ls_checkpoint_free(c);
    return LS_OK;
}

static ls_status use_a_thread(void)
{
    ls_checkpoint *c = NULL;
    ls_status status = ls_checkpoint_new(golden_new_folder(), ls_world(), NULL, &c);
    if (status == LS_OK) {
        status = ls_checkpoint_save(c, 1, items, 1);
    }
    if (status == LS_OK) {
        status = ls_checkpoint_wait(c);
    }
    if (status < 0) {
        golden_show_once(status);
    }
    (void)ls_checkpoint_free(c);
    return LS_OK;
}

GOLDEN_BARE(no_thread_and_no_random_numbers)
{
    golden_fail_each(GOLDEN_SYSTEM, use_a_thread);
}

GOLDEN_BARE(the_disk_fails)
{
    golden_fail_each(GOLDEN_FILES, use_files);
}

/* ---- parsers: files of other programs and hostile ones --------------------------------------- */

static void show_parse(const char *what, bool ok)
{
    printf("%s\n    %s\n", what, ok ? "no error" : ls_error_message());
}

static void show_safetensors(const char *what, const char *json, size_t data)
{
    ls__arena arena;
    ls__safetensors parsed;
    static char file[4096];
    const uint64_t length = strlen(json);
    memset(file, 0, sizeof file);
    memcpy(file, &length, 8);
    memcpy(file + 8, json, length);
    ls__arena_init(&arena, ls__env_posix(), 4096);
    show_parse(what, ls__safetensors_parse(file, 8 + length + data, "model.safetensors", &arena,
                                           &parsed) == LS_OK);
    ls__arena_fini(&arena);
}

GOLDEN(safetensors_files)
{
#define TENSOR(shape, from, to)                                                                    \
    "{\"w\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}}"
    ls__arena arena;
    ls__safetensors parsed;
    static const uint64_t huge[2] = {(uint64_t)1 << 40, 0};
    ls__arena_init(&arena, ls__env_posix(), 4096);
    show_parse("short", ls__safetensors_parse("abc", 3, "model.safetensors", &arena, &parsed) == 0);
    show_parse("a huge header",
               ls__safetensors_parse(huge, 16, "model.safetensors", &arena, &parsed) == 0);
    ls__arena_fini(&arena);
    show_safetensors("no header", " []", 0);
    show_safetensors("no JSON", "{\"w\":", 0);
    show_safetensors("metadata", "{\"__metadata__\":1}", 0);
    show_safetensors("a number in metadata", "{\"__metadata__\":{\"a\":1}}", 0);
    show_safetensors("a field too many", "{\"w\":{\"dtype\":\"F32\"}}", 0);
    show_safetensors("dtype", "{\"w\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    show_safetensors("shape", TENSOR("[-1]", "0", "4"), 4);
    show_safetensors("outside", TENSOR("[2]", "0", "8"), 4);
    show_safetensors("no place", TENSOR("[2]", "-8", "0"), 4);
    show_safetensors("size", TENSOR("[2]", "0", "4"), 4);
    show_safetensors("hole", TENSOR("[1]", "4", "8"), 8);
    show_safetensors("behind", TENSOR("[1]", "0", "4"), 8);
    show_safetensors("overlap",
                     "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                     4);
}

static void show_manifest(const char *what, const char *rest, bool hash_right)
{
    char text[4096], hex[LS__DIGEST_HEX + 1];
    uint8_t hash[LS__DIGEST_BYTES];
    ls__arena arena;
    ls__manifest parsed;
    (void)snprintf(text, sizeof text, "%s%0*d\",%s", LS__MANIFEST_HEAD, LS__DIGEST_HEX, 0, rest);
    const size_t bytes = strlen(text);
    if (hash_right) {
        (void)ls__manifest_hash(text, bytes, hash);
        ls__digest_hex(hash, hex);
        memcpy(text + LS__MANIFEST_HASH_AT, hex, LS__DIGEST_HEX);
    }
    ls__arena_init(&arena, ls__env_posix(), 4096);
    show_parse(what, ls__manifest_parse(text, bytes, "manifest.json", &arena, &parsed) == LS_OK);
    ls__arena_fini(&arena);
}

GOLDEN(manifests)
{
#define HEAD(version) "\"format\":\"lockstep checkpoint\",\"version\":" version ","
#define REST "\"hash_name\":\"" LS__DIGEST_NAME "\",\"library\":\"0\",\"step\":1,\"world_size\":1,"
#define BLOB "\"files\":{\"f\":{\"bytes\":4,\"hash\":\"" ZEROS "\"}},"
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
    show_manifest("damaged", "}", false);
    show_manifest("no JSON", "", true);
    show_manifest("format", "\"format\":\"recipe\"}", true);
    show_manifest("version", HEAD("0") "\"x\":1}", true);
    show_manifest("a later version", HEAD("99") "\"x\":1}", true);
    show_manifest("hash_name", HEAD("2") "\"x\":1}", true);
    show_manifest("step", HEAD("2") "\"hash_name\":\"" LS__DIGEST_NAME "\"}", true);
    show_manifest("world_size",
                  HEAD("2") "\"hash_name\":\"" LS__DIGEST_NAME "\",\"library\":\"0\",\"step\":1}",
                  true);
    show_manifest("library",
                  HEAD("2") "\"hash_name\":\"" LS__DIGEST_NAME "\",\"step\":1,\"world_size\":1}",
                  true);
    show_manifest("files", HEAD("2") REST "\"files\":1}", true);
    show_manifest("a file", HEAD("2") REST "\"files\":{\"../f\":{}}}", true);
    show_manifest("tensors", HEAD("2") REST BLOB "\"tensors\":1}", true);
    show_manifest("a tensor", HEAD("2") REST BLOB "\"tensors\":{\"w\":{}}}", true);
    show_manifest("a piece",
                  HEAD("2") REST BLOB
                  "\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"pieces\":[{}]}}}",
                  true);
    show_manifest("pieces",
                  HEAD("2") REST BLOB
                  "\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"pieces\":[]}}}",
                  true);
    show_manifest("pieces beside the tensor",
                  HEAD("2") REST BLOB
                  "\"tensors\":{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"pieces\":["
                  "{\"file\":\"f\",\"start\":[1],\"shape\":[1]}]}}}",
                  true);
}
