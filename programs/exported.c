/* SPDX-License-Identifier: Apache-2.0 */
/* Where --export writes: a file of weights, or a folder as transformers' save_pretrained makes it:
 *
 *     DIR/model.safetensors   DIR/config.json   DIR/tokenizer.json, vocab.json, … (copied)
 *     DIR/run.json            the flags, as beside checkpoints (run_file.h)
 *
 * The place is tried before the first step, so that hours of training are not lost to a wrong path:
 * a file with another name is made beside the future one and removed, and so is a new folder: a run
 * that fails leaves none. What is there stays as it is. */
#include "trainer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4352
#define WEIGHTS "model.safetensors"
#define TOKENIZER "tokenizer.json"

static const struct {
    const char *from, *to;
} tokenizer_files[] = {
    {TOKENIZER, TOKENIZER},
    {"encoder.json", "vocab.json"}, /* OpenAI's names */
    {"vocab.bpe", "merges.txt"},
    {"vocab.json", "vocab.json"},
    {"merges.txt", "merges.txt"},
    {"tokenizer_config.json", "tokenizer_config.json"},
    {"special_tokens_map.json", "special_tokens_map.json"},
};
#define TOKENIZER_FILES (sizeof tokenizer_files / sizeof *tokenizer_files)

static bool is_folder(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static _Noreturn void refuse(const trainer *t, const char *path, int error)
{
    give_up(EXIT_FAILURE, "--export %s: \"%s\" cannot be written: %s", t->set->export_to, path,
            strerror(error));
}

/* The weights are written under a temporary name in the same folder, too, and take the place of a
 * file that has their name. */
static void try_place(const trainer *t, const char *path)
{
    struct stat found;
    char trial[PATH_BYTES + 32];
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) {
        give_up(
            EXIT_FAILURE,
            "--export %s: \"%s\" is a device, a pipe or a socket, which cannot hold weights; give "
            "a file or a folder",
            t->set->export_to, path);
    }
    (void)snprintf(trial, sizeof trial, "%s.%d.try", path, (int)getpid());
    const int fd = open(trial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        refuse(t, path, errno);
    }
    (void)close(fd);
    (void)unlink(trial);
    if (is_folder(path)) {
        refuse(t, path, EISDIR);
    }
}

/* False: it was there. */
static bool make_folder(const trainer *t, const char *path)
{
    const bool made = mkdir(path, 0777) == 0;
    if (!made && errno != EEXIST) {
        refuse(t, path, errno);
    }
    return made;
}

static bool is_folder_name(const char *to)
{
    return to[0] != '\0' && to[strlen(to) - 1] == '/';
}

void trainer_export_file(const char *to, char *out, size_t bytes)
{
    const bool named = is_folder_name(to), folder = named || is_folder(to);
    (void)snprintf(out, bytes, "%.4096s%s%s", to, folder && !named ? "/" : "",
                   folder ? WEIGHTS : "");
}

/* ---- the files beside the weights ------------------------------------------------------------ */

/* The file `name` in the folder of `path`. */
static void beside(const char *path, const char *name, char out[PATH_BYTES])
{
    const char *slash = strrchr(path, '/');
    (void)snprintf(out, PATH_BYTES, "%.*s%s", slash != NULL ? (int)(slash - path) + 1 : 0, path,
                   name);
}

/* Replaces the file as a whole. */
static void write_text(const trainer *t, const char *path, const char *text, size_t bytes)
{
    char temporary[PATH_BYTES + 32];
    (void)snprintf(temporary, sizeof temporary, "%s.%d.part", path, (int)getpid());
    FILE *file = cli_create(temporary);
    bool good = file != NULL && fwrite(text, 1, bytes, file) == bytes;
    good = file != NULL && fclose(file) == 0 && good;
    if (!good || rename(temporary, path) != 0) {
        const int error = errno;
        (void)unlink(temporary);
        refuse(t, path, error);
    }
}

/* The whole file, from malloc; NULL where no regular file lies there. */
static char *read_whole(const char *path, size_t *bytes)
{
    struct stat found;
    FILE *file = cli_open(path, "r");
    if (file == NULL) {
        return NULL;
    }
    char *text = fstat(fileno(file), &found) == 0 ? malloc((size_t)found.st_size + 1) : NULL;
    *bytes = text != NULL ? fread(text, 1, (size_t)found.st_size, file) : 0;
    (void)fclose(file);
    return text;
}

static void copy_file(const trainer *t, const char *from, const char *name)
{
    char to[PATH_BYTES];
    size_t bytes = 0;
    char *text = read_whole(from, &bytes);
    if (text != NULL) {
        beside(t->export_file, name, to);
        write_text(t, to, text, bytes);
    }
    free(text);
}

/* The source of tokenizer file i of an export; false: the run's tokenizer lacks it. A file of
 * another name is itself the tokenizer, and a tokenizer.json beside it is not. */
static bool tokenizer_source(const trainer *t, size_t i, char out[PATH_BYTES])
{
    const char *given = t->task.tokenizer;
    if (given == NULL || strcmp(given, "bytes") == 0) {
        return false;
    }
    const char *slash = strrchr(given, '/'), *name = slash != NULL ? slash + 1 : given;
    if (is_folder(given)) {
        (void)snprintf(out, PATH_BYTES, "%.4096s/%s", given, tokenizer_files[i].from);
    } else if (strcmp(name, TOKENIZER) == 0) {
        beside(given, tokenizer_files[i].from, out);
    } else {
        (void)snprintf(out, PATH_BYTES, "%.4096s", given);
        return i == 0;
    }
    return access(out, F_OK) == 0;
}

static void copy_tokenizer(const trainer *t)
{
    char from[PATH_BYTES];
    for (size_t i = 0; i < TOKENIZER_FILES; i++) {
        if (tokenizer_source(t, i, from)) {
            copy_file(t, from, tokenizer_files[i].to);
        }
    }
}

/* Readers of the folder would take an older tokenizer for that of the weights. Where the data are
 * tokens, it may be the right one. */
static void refuse_other_tokenizers(const trainer *t)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    bool written[TOKENIZER_FILES];
    if (t->task.tokenizer == NULL) {
        return;
    }
    for (size_t i = 0; i < TOKENIZER_FILES; i++) {
        written[i] = tokenizer_source(t, i, from);
    }
    for (size_t i = 0; i < TOKENIZER_FILES; i++) {
        bool replaced = false;
        for (size_t k = 0; k < TOKENIZER_FILES; k++) {
            replaced = replaced ||
                       (written[k] && strcmp(tokenizer_files[k].to, tokenizer_files[i].to) == 0);
        }
        beside(t->export_file, tokenizer_files[i].to, to);
        if (!replaced && access(to, F_OK) == 0) {
            give_up(EXIT_FAILURE,
                    "--export %s: \"%s\" is there, and the tokenizer of this run has no such file "
                    "to replace it; remove it, or give another folder",
                    t->set->export_to, to);
        }
    }
}

/* config.json for transformers where it has such a model, run.json for Lockstep. */
static void describe(const trainer *t)
{
    char path[PATH_BYTES];
    if (t->task.config != NULL) {
        beside(t->export_file, "config.json", path);
        write_text(t, path, t->task.config, strlen(t->task.config));
    }
    copy_tokenizer(t);
    run_file_write(t->set->run, t->set->export_to, t->task.data);
}

void trainer_export_prepare(trainer *t)
{
    const char *to = t->set->export_to;
    const size_t length = to != NULL ? strlen(to) : 0;
    if (length == 0) {
        if (to != NULL) {
            give_up(EXIT_USAGE, "--export is empty; give a file or a folder");
        }
        return;
    }
    if (length >= 4096) {
        refuse(t, to, ENAMETOOLONG);
    }
    t->export_file = calloc(1, PATH_BYTES);
    if (t->export_file == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    const bool made = ls_rank() == 0 && is_folder_name(to) && make_folder(t, to);
    trainer_export_file(to, t->export_file, PATH_BYTES);
    if (ls_rank() == 0) {
        try_place(t, t->export_file);
        if (is_folder(to)) {
            refuse_other_tokenizers(t);
        }
    }
    if (made) {
        (void)rmdir(to);
    }
}

void trainer_export(const trainer *t)
{
    if (t->export_file == NULL) {
        return;
    }
    const char *to = t->set->export_to;
    if (ls_rank() == 0 && is_folder_name(to)) {
        (void)make_folder(t, to);
    }
    parallel_export(&t->ranks, trainer_net(t), t->task.show, t->export_file);
    if (ls_rank() == 0 && strcmp(t->export_file, t->set->export_to) != 0) {
        describe(t);
    }
}
