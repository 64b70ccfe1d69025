/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep info`: the build, the machine, and the settings in the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "base/env.h"
#include "base/memory.h"
#include "base/settings.h"
#include "comm/algorithm/rules.h"
#include "comm/tune/cache.h"
#include "comm/tune/tune.h"
#include "commands.h"
#include "job/board.h"
#include "job/nodes/nodes.h"
#include "kernel/kernels.h"
#include "tools/build_info.h"
#include "tools/cli/cli.h"

/* ---- the facts ----------------------------------------------------------------------------- */

/* The compiler, the build's options and its libraries: what a report of a bug needs. */
static void print_build(void)
{
    struct utsname system;
    printf("lockstep           %s\n", ls_version());
#if defined(__clang__)
    printf("compiler           clang %s\n", __clang_version__);
#else
    printf("compiler           gcc %s\n", __VERSION__);
#endif
    printf("build              %s\n", BUILD_OPTIONS);
    printf("built with         %s\n", BUILD_LIBRARIES);
    if (uname(&system) == 0) {
        printf("system             %s %s %s\n", system.sysname, system.release, system.machine);
    }
}

/* Whether `word` is in the line of /proc/cpuinfo that lists the processor's features. */
static bool has_feature(const char *line, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(line, word); at != NULL; at = strstr(at + 1, word)) {
        if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* The processor's features, whether or not LOCKSTEP_CPU lets the kernels use them. */
static void print_features(void)
{
    static const char *const names[][2] = {{"avx2", "AVX2"},
                                           {"avx512f", "AVX-512"},
                                           {"avx512_bf16", "AVX-512 BF16"},
                                           {"amx_tile", "AMX"},
                                           {"amx_bf16", "AMX BF16"}};
    char *line = NULL;
    size_t room = 0;
    bool any = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && getline(&line, &room, file) > 0 && strncmp(line, "flags", 5) != 0) {
    }
    printf("instructions       ");
    for (size_t i = 0; line != NULL && i < sizeof names / sizeof *names; i++) {
        if (strncmp(line, "flags", 5) == 0 && has_feature(line, names[i][0])) {
            printf("%s%s", any ? ", " : "", names[i][1]);
            any = true;
        }
    }
    printf("%s\n", any ? "" : "none of AVX2, AVX-512, AMX");
    free(line);
    if (file != NULL) {
        fclose(file);
    }
}

/* Which code computes what, and why where something faster exists. */
static void print_paths(void)
{
    ls__kernel_path path[LS__KERNEL_PATHS];
    const int count = ls__kernels_paths(path);
    for (int i = 0; i < count; i++) {
        const char *because = path[i].because;
        printf("  %-24s %s%s%s\n", path[i].family, path[i].path, because != NULL ? ": " : "",
               because != NULL ? because : "");
    }
}

static void print_machine(void)
{
    const ls__env *env = ls__env_posix();
    char processor[256];
    processor_name(processor, sizeof processor);
    printf("processor          %s\n", processor);
    print_features();
    printf("cores              %d\n", env->cores(env));
    printf("kernels            %s (the processor has %s)\n", ls__cpu_name(ls__cpu_level()),
           ls__cpu_name(ls__cpu_best_level()));
    print_paths();
    printf("transports         shm (ranks of one host), tcp (between hosts), tls %s\n", BUILD_TLS);
    print_mpi();
}

/* The setting is the word in brackets: "always [madvise] never". */
static void print_huge_pages(void)
{
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file != NULL) {
        (void)!fgets(line, sizeof line, file);
        fclose(file);
    }
    const char *open = strchr(line, '[');
    printf("huge pages         %.*s\n", open != NULL ? (int)strcspn(open + 1, "]") : 7,
           open != NULL ? open + 1 : "unknown");
}

static void print_limit(const char *name, rlim_t limit)
{
    if (limit == RLIM_INFINITY) {
        printf("%-18s unlimited\n", name);
    } else {
        printf("%-18s %llu\n", name, (unsigned long long)limit);
    }
}

static void print_limits(void)
{
    const int64_t left = ls__memory_available(ls__env_posix());
    if (left >= 0) {
        printf("memory available   %.2f GiB\n", (double)left / (double)(1 << 30));
    }
    print_huge_pages();
    // Two calls: the type of a limit's number differs between C libraries, so no parameter has it.
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        print_limit("open files", limit.rlim_cur);
    }
    if (getrlimit(RLIMIT_AS, &limit) == 0) {
        print_limit("address space", limit.rlim_cur);
    }
    printf("ranks              up to %d a host, %d hosts\n", LS__BOARD_RANKS_MAX, LS__NODES_MAX);
}

/* ---- variables ----------------------------------------------------------------------------- */

/* All variables with meaning and default, or only those that are set. */
static void print_settings(bool all)
{
    int count = 0, set = 0;
    const ls__setting *table = ls__settings(&count);
    printf("variables          ");
    for (int i = 0; i < count; i++) {
        const char *value = getenv(table[i].name);
        set += value != NULL && value[0] != '\0';
    }
    printf("%d of %d are set%s\n", set, count, all ? "" : "; --variables lists them");
    for (int i = 0; i < count; i++) {
        const char *value = getenv(table[i].name);
        const bool is_set = value != NULL && value[0] != '\0';
        if (all) {
            printf("  %-24s %s\n", table[i].name, table[i].meaning);
            printf("  %-24s   now: %s%s%s\n", "", is_set ? value : "not set",
                   table[i].fallback[0] != '\0' ? "; default: " : "", table[i].fallback);
        } else if (is_set && strncmp(table[i].name, "LOCKSTEP_", 9) == 0) {
            printf("  %s=%s\n", table[i].name, value);
        }
    }
}

/* ---- --tuning ------------------------------------------------------------------------------ */

/* The three figures of the classical cost model, and the four that this one adds. */
static void print_figures(const ls__figures *f)
{
    printf("  alpha %.1f us a step, beta %.3f ns a byte of the busiest link, gamma %.3f ns a byte "
           "summed\n",
           f->of[LS__COST_STEPS] / 1e3, f->of[LS__COST_LINK], f->of[LS__COST_SUM]);
    printf("  and %.1f us a message of a rank, %.1f us a message of all, %.3f ns a byte of all, "
           "%.3f inside a host\n",
           f->of[LS__COST_RANK_MESSAGES] / 1e3, f->of[LS__COST_ALL_MESSAGES] / 1e3,
           f->of[LS__COST_ALL], f->of[LS__COST_LOCAL]);
}

/* One layout of the file of times: its figures, and the algorithms that follow from them. Entries
 * that another version wrote are skipped. */
static void print_entry(void *arg, const char *key, const char *times)
{
    int *entries = arg;
    ls__layout layout;
    ls__timings timings;
    ls__figures figures;
    ls__tune_table table;
    char lines[4096] = "";
    ls__text text = {.at = lines, .room = sizeof lines};
    if (!ls__tune_key_layout(key, &layout) ||
        ls__timings_init(&timings, &layout, ls__env_posix()) != LS_OK ||
        !ls__tune_read_times(times, &timings)) {
        return;
    }
    ls__tune_fit(&timings, &figures);
    if (ls__tune_decide(&layout, &timings, &figures, ls__env_posix(), &table) != LS_OK) {
        return;
    }
    ls__tune_print(&table, &text);
    printf("\n%d ranks, %s\n", layout.size, key);
    print_figures(&table.figures);
    printf("  sums of up to %d bytes travel with the announcement\n",
           table.one_shot > 0 ? table.one_shot : 0);
    printf("%s", lines);
    ++*entries;
}

/* Reads settings and file as a job does, but joins none. Returns the exit status. */
static int print_tuning(void)
{
    char path[512];
    ls__rules rules;
    ls__tune_mode mode;
    int entries = 0;
    if (ls__rules_read(&rules) != LS_OK || ls__tune_mode_read(&mode) != LS_OK) {
        fprintf(stderr, "lockstep info: %s\n", ls_error_message());
        return 1;
    }
    printf("on one host        one_shot for small data, otherwise direct; nothing is timed\n"
           "on several hosts   %s\n",
           mode == LS__TUNE_OFF
               ? "the built-in choice: LOCKSTEP_TUNE=off"
               : "by the times of `lockstep tune`, or by the model's default figures");
    const char *asked = ls__setting_get("LOCKSTEP_ALGORITHM");
    if (asked != NULL) {
        printf("requested          LOCKSTEP_ALGORITHM=%s\n", asked);
    }
    if (!ls__tune_file(path, sizeof path)) {
        printf("times kept in      no file: neither LOCKSTEP_TUNE_FILE nor HOME is set\n");
        return 0;
    }
    (void)ls__tune_each(ls__env_posix(), path, print_entry, &entries);
    printf("%stimes kept in      %s (%d layout%s; `lockstep tune` measures them)\n",
           entries > 0 ? "\n" : "", path, entries, entries == 1 ? "" : "s");
    return 0;
}

/* ---- the command --------------------------------------------------------------------------- */

static bool tuning, variables, backends;
static const char *mesh;
static int64_t per_host;
static bool comm, memory, formula;
static int64_t zero = -1, ranks = 1;
static parallel_question question = {.layers = 4,
                                     .dim = 128,
                                     .heads = 4,
                                     .context = 128,
                                     .batch = 8,
                                     .model = "gpt",
                                     .experts = 8,
                                     .top_k = 2};

static const cli_option options[] = {
    {"variables", CLI_SWITCH, &variables, .help = "list all variables with meaning and default"},
    {"tuning", CLI_SWITCH, &tuning, .help = "show the algorithms in use, and what was measured"},
    {"backends", CLI_SWITCH, &backends, .help = "show what native and each plug-in can do"},
    {"mesh", CLI_TEXT, &mesh, .value_name = "AXES", .help = "draw the mesh, such as pp=2,dp=4"},
    {"per-host", CLI_COUNT, &per_host, 1, LS__BOARD_RANKS_MAX, .fallback = "all",
     .help = "with --mesh: this many ranks share a host"},
    {"comm", CLI_SWITCH, &comm, .help = "with --mesh: what a step of a GPT sends along each axis"},
    {"memory", CLI_SWITCH, &memory,
     .help =
         "what a block of a GPT keeps for backward; with MODEL, gpt2 to gpt2-xl or the folder of "
         "a GPT-2, Llama or Mixtral: what training keeps on each rank"},
    {"zero", CLI_COUNT, &zero, 0, 3, .fallback = "a row for each",
     .help = "with --memory MODEL, --comm: 1, optimizer state is divided among the ranks; 2, "
             "gradients as well; 3, parameters as well"},
    {"hook", CLI_TEXT, &question.hook, .value_name = "HOOK",
     .help = "with --comm: what lockstep train --comm HOOK sends in place of gradients"},
    {"ranks", CLI_COUNT, &ranks, 1, 1e6, .letter = 'n', .help = "with --memory MODEL: how many"},
    {"formula", CLI_SWITCH, &formula, .help = "with --memory: by formulas; there is no other way"},
    {"model", CLI_CHOICE, &question.model, .choices = "gpt|moe",
     .help = "with --comm: moe has experts in every second block, as lockstep train gpt makes it"},
    {"experts", CLI_COUNT, &question.experts, 1, 1e4, .help = "of moe: experts of such a block"},
    {"top-k", CLI_COUNT, &question.top_k, 1, 1e4, .help = "of moe: experts that a token visits"},
    {"capacity", CLI_NUMBER, &question.capacity, 0, 1e6,
     .help = "of moe: an expert takes X times its even share of the tokens; 0: no limit"},
    {"padded", CLI_SWITCH, &question.padded, .help = "of moe: sends whole capacities"},
    {"layers", CLI_COUNT, &question.layers, 1, 1e6, .help = "with --comm, --memory: its blocks"},
    {"dim", CLI_COUNT, &question.dim, 1, 1e9, .help = "numbers of a token"},
    {"heads", CLI_COUNT, &question.heads, 1, 1e6, .help = "heads of attention"},
    {"kv-heads", CLI_COUNT, &question.kv_heads, 1, 1e6, .fallback = "as --heads",
     .help = "heads of keys and values"},
    {"vocab", CLI_COUNT, &question.vocab, 0, 1e9, .help = "tokens; 0: the blocks alone"},
    {"context", CLI_COUNT, &question.context, 1, 1e9, .help = "tokens of a sequence"},
    {"batch", CLI_COUNT, &question.batch, 1, 1e9, .help = "sequences of a micro-batch"},
    {"sequence", CLI_SWITCH, &question.sequence, .help = "with --comm: sequence parallelism"},
    {"regather", CLI_SWITCH, &question.regather,
     .help = "with --sequence: gathered inputs are not kept"},
};

static const cli_command command = {
    .name = "lockstep info",
    .about = "Shows the library, the processor, limits of this system, and settings.",
    .operands = "[MODEL]",
    .options = options,
    .count = (int)(sizeof options / sizeof *options)};

int cmd_info(int argc, char **argv)
{
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (tuning) {
        return print_tuning();
    }
    if (backends) {
        return print_backends();
    }
    if (memory && first < argc) {
        return print_zero(&command, argv, argv[first], (int)zero, (int)ranks);
    }
    if (first < argc) {
        return cli_wrong(&command, "\"%s\" is not expected here; give --memory before a model",
                         argv[first]);
    }
    if (comm || memory) {
        question.zero = (int)zero;
        return print_parallel(mesh, memory, &question);
    }
    if (mesh != NULL || per_host > 0) {
        return print_mesh(mesh, (int)per_host);
    }
    if (!variables) {
        print_build();
        print_machine();
        print_limits();
    }
    print_settings(variables);
    (void)ls__settings_check();
    return 0;
}
