/* A graph for a device with a view among its nodes that lies in the program's own memory: ggml's scheduler leaves such
 * nodes where they are, for they compute nothing.
 *
 *   stray_view BACKENDS DEVICE
 *
 * Prints the sum that the device computed beside it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

enum { N = 4 };

static struct ggml_context *context(void) {
    struct ggml_init_params params = { 1 << 20, NULL, true };
    return ggml_init(params);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[2]);
    ggml_backend_dev_t cpu = ggml_backend_dev_by_name("CPU");
    if (device == NULL || cpu == NULL) {
        fprintf(stderr, "no such device\n");
        return 2;
    }
    struct ggml_context *here = context(), *there = context(), *nodes = context();
    struct ggml_tensor *own = ggml_new_tensor_1d(here, GGML_TYPE_F32, N);
    struct ggml_tensor *a = ggml_new_tensor_1d(there, GGML_TYPE_F32, N);
    struct ggml_tensor *sum = ggml_sum(there, a);
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    ggml_backend_buffer_t own_buffer = ggml_backend_alloc_ctx_tensors_from_buft(here, ggml_backend_dev_buffer_type(cpu));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(there, backend);
    struct ggml_tensor *view = ggml_view_1d(nodes, own, N / 2, sizeof(float));
    ggml_backend_view_init(view);
    const float values[N] = { 1, 2, 3, 4 };
    ggml_backend_tensor_set(a, values, 0, sizeof values);

    struct ggml_cgraph *graph = ggml_new_graph(nodes);
    ggml_build_forward_expand(graph, view);
    ggml_build_forward_expand(graph, sum);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "the graph failed\n");
        return 1;
    }
    float result = 0;
    ggml_backend_tensor_get(sum, &result, 0, sizeof result);
    printf("%g\n", (double) result);
    ggml_backend_buffer_free(own_buffer);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    return 0;
}
