/* Runs of bytes at equal distances, into a tensor and out of it: what ggml calls 2d transfers.
 *
 *   strides BACKENDS DEVICE [ROUNDS]
 *
 * BACKENDS: the folder with ggml's back-end libraries. DEVICE: a device's name. Each case writes runs into a tensor and
 * reads others, in one call each; prints "CASE HASH" of the whole tensor and of what was read, the same on every device.
 * The last case's tensor is then computed with. With ROUNDS, "microseconds" for the last case's calls are printed to standard error, that of the fastest round.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "ggml.h"

enum { BYTES = 16 << 20, GAP_MARK = 0xa5 };

static const struct {
    const char *name;
    enum ggml_type type;
    size_t offset, size, runs, in_tensor, in_memory;
} CASES[] = {
    { "odd", GGML_TYPE_I8, 3, 5, 1001, 7, 11 },
    { "close", GGML_TYPE_F32, 4, 12, 2000, 12, 12 },
    { "blocks", GGML_TYPE_Q8_0, 34, 68, 512, 340, 100 },
    { "overlapping", GGML_TYPE_I8, 0, 100, 64, 60, 100 },
    { "one-place", GGML_TYPE_I8, 17, 9, 8, 0, 9 },
    { "long", GGML_TYPE_F32, 12, 700004, 5, 1000000, 700004 },
    { "half-of-rows", GGML_TYPE_F32, 2048, 2048, 4096, 4096, 4096 },
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double) time.tv_sec + 1e-3 * (double) time.tv_nsec;
}

static uint64_t fnv1a(const unsigned char *data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t at = 0; at < size; at++) {
        hash = (hash ^ data[at]) * 0x100000001b3u;
    }
    return hash;
}

/* Twice the first values of `tensor`, as the device computes them. */
static void print_doubled(ggml_backend_t backend, struct ggml_tensor *tensor) {
    struct ggml_init_params params = { .mem_size = 1 << 20, .mem_buffer = NULL, .no_alloc = true };
    struct ggml_context *context = ggml_init(params);
    struct ggml_tensor *some = ggml_view_1d(context, tensor, 1024, 0), *doubled = ggml_add(context, some, some);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, doubled);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    unsigned char values[4096];
    if (buffer == NULL || ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "strides: computing failed\n");
        exit(3);
    }
    ggml_backend_tensor_get(doubled, values, 0, sizeof values);
    printf("doubled %016llx\n", (unsigned long long) fnv1a(values, sizeof values));
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: strides BACKENDS DEVICE [ROUNDS]\n");
        return 2;
    }
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[2]);
    ggml_backend_t backend = device != NULL ? ggml_backend_dev_init(device, NULL) : NULL;
    if (backend == NULL) {
        fprintf(stderr, "strides: no such device\n");
        return 2;
    }
    int rounds = argc > 3 ? atoi(argv[3]) : 1;
    unsigned char *from = malloc(BYTES), *to = malloc(BYTES), *whole = malloc(BYTES);
    for (size_t at = 0; at < BYTES; at++) {
        from[at] = (unsigned char) ((at * 2654435761u) >> 13);
    }
    double best_set = 1e12, best_get = 1e12;
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        struct ggml_init_params params = { .mem_size = 1 << 16, .mem_buffer = NULL, .no_alloc = true };
        struct ggml_context *context = ggml_init(params);
        enum ggml_type type = CASES[at].type;
        int64_t elements = (int64_t) (BYTES / ggml_type_size(type)) * ggml_blck_size(type);
        struct ggml_tensor *tensor = ggml_new_tensor_1d(context, type, elements);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
        size_t offset = CASES[at].offset, size = CASES[at].size, runs = CASES[at].runs;
        memset(to, GAP_MARK, BYTES);
        ggml_backend_tensor_memset(tensor, 0x11, 0, ggml_nbytes(tensor));
        for (int round = 0; round < rounds; round++) {
            double start = now();
            ggml_backend_tensor_set_2d(tensor, from, offset, size, runs, CASES[at].in_tensor, CASES[at].in_memory);
            /* What is posted has arrived when something behind it has come back. */
            ggml_backend_tensor_get(tensor, whole, 0, ggml_type_size(type));
            double set = now();
            ggml_backend_tensor_get_2d(tensor, to, 2 * offset, size, runs - 2, CASES[at].in_tensor, CASES[at].in_memory);
            double got = now();
            best_set = set - start < best_set || round == 0 ? set - start : best_set;
            best_get = got - set < best_get || round == 0 ? got - set : best_get;
        }
        ggml_backend_tensor_get(tensor, whole, 0, ggml_nbytes(tensor));
        printf("%s %016llx %016llx\n", CASES[at].name, (unsigned long long) fnv1a(whole, ggml_nbytes(tensor)),
               (unsigned long long) fnv1a(to, BYTES));
        if (at + 1 == sizeof CASES / sizeof *CASES) {
            print_doubled(backend, tensor);
        }
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
    if (argc > 3) {
        fprintf(stderr, "microseconds: set %.0f, get %.0f\n", best_set, best_get);
    }
    ggml_backend_free(backend);
    free(from);
    free(to);
    free(whole);
    return 0;
}
