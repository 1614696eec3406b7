/* A tensor of more than 4 GiB, used where offsets need more than 32 bits, and tensors and buffers without a byte.
 *
 *   large BACKENDS DEVICE
 *
 * BACKENDS: the folder with ggml's back-end libraries. DEVICE: a device's name. Most of the tensor is never touched, so on
 * a CPU it takes little memory. Prints what is read from it, directly and by operations: the same on every device.
 * Exits with 2 if something could not be set up, 3 if computing fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml.h"

/* The first ROWS_BELOW rows are 4 GiB. */
enum { WIDTH = 1024, ROWS_BELOW = 1 << 20, ROWS = ROWS_BELOW + 4096, SOME = 4, PICKED = 3 };

static const size_t ROW_BYTES = WIDTH * sizeof(float);

static void give_up(const char *what) {
    fprintf(stderr, "large: %s\n", what);
    exit(2);
}

static void print_row(const char *what, const float *row) {
    double sum = 0;
    for (int at = 0; at < WIDTH; at++) {
        sum += row[at];
    }
    printf("%s: %g … %g, sum %g\n", what, row[0], row[WIDTH - 1], sum);
}

/* Rows from `first` on, whose values are powers of two and small integers: sums of them are exact. */
static void write_rows(struct ggml_tensor *tensor, int64_t first) {
    static float rows[SOME][WIDTH];
    for (int row = 0; row < SOME; row++) {
        for (int at = 0; at < WIDTH; at++) {
            rows[row][at] = (float) (first % 97 + row) + (float) at / 1024.0f;
        }
    }
    ggml_backend_tensor_set(tensor, rows, (size_t) first * ROW_BYTES, sizeof rows);
}

static void read_row(const struct ggml_tensor *tensor, int64_t row) {
    static float values[WIDTH];
    char what[64];
    ggml_backend_tensor_get(tensor, values, (size_t) row * ROW_BYTES, ROW_BYTES);
    snprintf(what, sizeof what, "row %" PRId64, row);
    print_row(what, values);
}

static void read_result(const char *what, const struct ggml_tensor *tensor) {
    static float values[SOME * WIDTH];
    ggml_backend_tensor_get(tensor, values, 0, ggml_nbytes(tensor));
    for (size_t at = 0; at < ggml_nbytes(tensor) / ROW_BYTES; at++) {
        print_row(what, values + at * WIDTH);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        give_up("usage: large BACKENDS DEVICE");
    }
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[2]);
    ggml_backend_t backend = device != NULL ? ggml_backend_dev_init(device, NULL) : NULL;
    if (backend == NULL) {
        give_up("no such device");
    }
    struct ggml_init_params params = { .mem_size = 1 << 20, .mem_buffer = NULL, .no_alloc = true };
    struct ggml_context *context = ggml_init(params);

    struct ggml_tensor *large = ggml_new_tensor_2d(context, GGML_TYPE_F32, WIDTH, ROWS);
    struct ggml_tensor *picks = ggml_new_tensor_1d(context, GGML_TYPE_I32, PICKED);
    struct ggml_tensor *source = ggml_new_tensor_2d(context, GGML_TYPE_F32, WIDTH, 1);
    struct ggml_tensor *empty = ggml_new_tensor_2d(context, GGML_TYPE_F32, 0, SOME);
    struct ggml_tensor *nothing = ggml_scale(context, empty, 2.0f);
    /* Two rows on either side of 4 GiB, rows picked by number, and a row that is written beyond. */
    struct ggml_tensor *across =
        ggml_view_2d(context, large, WIDTH, SOME, ROW_BYTES, (ROWS_BELOW - SOME / 2) * ROW_BYTES);
    struct ggml_tensor *doubled = ggml_scale(context, across, 2.0f);
    struct ggml_tensor *picked = ggml_get_rows(context, large, picks);
    struct ggml_tensor *last = ggml_view_2d(context, large, WIDTH, 1, ROW_BYTES, (ROWS - 1) * ROW_BYTES);
    struct ggml_tensor *written = ggml_cpy(context, source, last);

    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, doubled);
    ggml_build_forward_expand(graph, nothing);
    ggml_build_forward_expand(graph, picked);
    ggml_build_forward_expand(graph, written);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    ggml_backend_buffer_t none = ggml_backend_buft_alloc_buffer(ggml_backend_get_default_buffer_type(backend), 0);
    if (buffer == NULL || none == NULL) {
        give_up("no memory");
    }
    printf("%zu and %zu bytes\n", ggml_nbytes(large), ggml_backend_buffer_get_size(none));

    write_rows(large, 0);
    write_rows(large, ROWS_BELOW - SOME / 2);
    write_rows(large, ROWS_BELOW + 777);
    write_rows(large, ROWS - SOME);
    /* What would be hit if only 32 bits of an offset counted. */
    read_row(large, 0);
    read_row(large, 2);
    read_row(large, ROWS_BELOW - 1);
    read_row(large, ROWS_BELOW + 1);
    read_row(large, ROWS_BELOW + 779);
    ggml_backend_tensor_memset(large, 0, (size_t) (ROWS_BELOW + 780) * ROW_BYTES + 4, ROW_BYTES - 8);
    read_row(large, ROWS_BELOW + 780);

    int32_t rows[PICKED] = { 3, ROWS_BELOW + 777, ROWS - 2 };
    static float ones[WIDTH];
    for (int at = 0; at < WIDTH; at++) {
        ones[at] = 1.0f;
    }
    ggml_backend_tensor_set(picks, rows, 0, sizeof rows);
    ggml_backend_tensor_set(source, ones, 0, sizeof ones);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "large: computing failed\n");
        return 3;
    }
    read_result("doubled", doubled);
    read_result("picked", picked);
    read_row(large, ROWS - 1);
    read_row(large, ROWS - 1 - ROWS_BELOW);
    ggml_backend_buffer_free(none);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    ggml_free(context);
    return 0;
}
