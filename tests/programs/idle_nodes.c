/* A graph for a device with nodes that compute nothing there, as ggml's scheduler and llama.cpp make them:
 *
 * - a view of the program's own memory, which the scheduler leaves among a back-end's nodes,
 * - an operation that is not marked as one to compute: of several that llama.cpp has built it wants another,
 * - a view of no elements that begins behind the end of what it views, where a tensor is split over devices and there is
 *   nothing of it on this one; and an operation on it.
 *
 *   idle_nodes BACKENDS DEVICE
 *
 * Prints the sum that the device computed beside them, of a vector that the unmarked operation would have doubled.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

enum { N = 4, FAR = 1 << 20 };

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
    struct ggml_tensor *doubled = ggml_scale_inplace(nodes, a, 2.0f);
    ggml_backend_view_init(doubled);
    struct ggml_tensor *nothing = ggml_view_1d(nodes, a, 0, 0);
    nothing->view_offs = FAR;
    ggml_backend_view_init(nothing);
    struct ggml_tensor *scaled = ggml_scale_inplace(nodes, nothing, 3.0f);
    ggml_backend_view_init(scaled);
    const float values[N] = { 1, 2, 3, 4 };
    ggml_backend_tensor_set(a, values, 0, sizeof values);

    struct ggml_cgraph *graph = ggml_new_graph(nodes);
    ggml_build_forward_expand(graph, view);
    ggml_build_forward_expand(graph, doubled);
    ggml_build_forward_expand(graph, scaled);
    ggml_build_forward_expand(graph, sum);
    doubled->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
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
