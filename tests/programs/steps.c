/* Computes one graph again and again, as llama.cpp does with that of a token: write its inputs, compute, read the result.
 *
 *   steps BACKENDS DEVICE NODES STEPS [plain | changing | new]
 *
 * BACKENDS: the folder with ggml's back-end libraries. DEVICE: a device's name. Next to nothing is computed in each of
 * NODES nodes: what is left is what it takes to get there. The graph goes through ggml's scheduler, which gives it a uid;
 * with "plain" it does not, and has none, as in builds of ggml from before April 2026. With "changing" that graph's parameters, sources
 * and leaves are changed in place now and then. With "new" each step has a graph of
 * another size, one of VARIETY; "mark STEPS" is printed at each tenth of the way, and in the end it waits to be killed.
 * Prints "sum SUM" over all results. Exits with 2 if something could not be set up, 3 if computing fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

enum { WIDTH = 64, INPUTS = 6, THREADS = 1, VARIETY = 100 };

struct work {
    struct ggml_cgraph *graph;
    struct ggml_tensor *sum, *norm; /* the first of each */
    struct ggml_tensor *inputs[INPUTS];
    struct ggml_tensor *result;
};

static const float EPSILON = 1e-5f;

static void give_up(const char *what) {
    fprintf(stderr, "steps: %s\n", what);
    exit(2);
}

static void set_threads(ggml_backend_t backend) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    ggml_backend_set_n_threads_t set = ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set != NULL) {
        set(backend, THREADS);
    }
}

static ggml_backend_t start(ggml_backend_dev_t device, const char *what) {
    ggml_backend_t backend = device != NULL ? ggml_backend_dev_init(device, NULL) : NULL;
    if (backend == NULL) {
        give_up(what);
    }
    set_threads(backend);
    return backend;
}

/* Sums, products, norms and views in turn, with names as llama.cpp gives them. */
static struct work build(struct ggml_tensor *weight, struct ggml_context *context, int nodes) {
    struct work work;
    for (int at = 0; at < INPUTS; at++) {
        work.inputs[at] = ggml_new_tensor_1d(context, GGML_TYPE_F32, WIDTH);
        ggml_set_input(work.inputs[at]);
        ggml_format_name(work.inputs[at], "inp_%d", at);
    }
    struct ggml_tensor *last = work.inputs[0];
    for (int at = 0; at < nodes; at++) {
        switch (at % 5) {
        case 0: last = ggml_add(context, last, work.inputs[1 + at / 5 % (INPUTS - 1)]); break;
        case 1: last = ggml_rms_norm(context, last, EPSILON); break;
        case 2: last = ggml_mul(context, last, weight); break;
        case 3: last = ggml_reshape_2d(context, last, WIDTH / 2, 2); break;
        case 4: last = ggml_reshape_1d(context, last, WIDTH); break;
        }
        ggml_format_name(last, "ffn_out-%d", at);
        work.sum = at == 0 ? last : work.sum;
        work.norm = at == 1 ? last : work.norm;
    }
    ggml_set_output(last);
    work.result = last;
    work.graph = ggml_new_graph_custom(context, (size_t) nodes + 64, false);
    ggml_build_forward_expand(work.graph, last);
    return work;
}

/* A parameter, a source and where a leaf lies, each at its own pace. */
static void change(struct work *work, int step) {
    float epsilon = step / 2 % 2 == 0 ? EPSILON : 0.5f;
    memcpy(work->norm->op_params, &epsilon, sizeof epsilon);
    work->sum->src[1] = work->inputs[1 + step / 3 % 2];
    if (step % 5 == 4) {
        void *data = work->inputs[3]->data;
        work->inputs[3]->data = work->inputs[4]->data;
        work->inputs[4]->data = data;
    }
}

static struct ggml_context *new_context(size_t tensors) {
    struct ggml_init_params params = {
        .mem_size = tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false),
        .no_alloc = true,
    };
    return ggml_init(params);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        give_up("usage: steps BACKENDS DEVICE NODES STEPS [plain | changing | new]");
    }
    int nodes = atoi(argv[3]), steps = atoi(argv[4]);
    int plain = argc == 6 && strcmp(argv[5], "new") != 0, anew = argc == 6 && !plain;
    int changing = plain && strcmp(argv[5], "changing") == 0;
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_t backends[2] = {
        start(ggml_backend_dev_by_name(argv[2]), "no such device, or it does not start"),
        start(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), "no CPU back-end"),
    };
    struct ggml_context *leaves = new_context(8), *context = new_context((size_t) nodes + 64);
    struct ggml_tensor *weight = ggml_new_tensor_1d(leaves, GGML_TYPE_F32, WIDTH);
    ggml_set_name(weight, "blk.0.attn_norm.weight");
    struct work work = build(weight, context, nodes);
    ggml_backend_buffer_t weights = ggml_backend_alloc_ctx_tensors(leaves, backends[0]);
    ggml_backend_buffer_set_usage(weights, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    float values[WIDTH];
    for (int at = 0; at < WIDTH; at++) {
        values[at] = 1.0f + (float) at / WIDTH;
    }
    ggml_backend_tensor_set(weight, values, 0, sizeof values);

    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 2, (size_t) nodes + 64, false, true);
    ggml_backend_buffer_t own = NULL;
    if (plain) {
        own = ggml_backend_alloc_ctx_tensors(context, backends[0]);
    } else if (!ggml_backend_sched_alloc_graph(sched, work.graph)) {
        give_up("the graph cannot be allocated");
    }
    double sum = 0;
    for (int step = 0; step < steps; step++) {
        if (anew) {
            ggml_free(context);
            context = new_context((size_t) nodes + 64);
            work = build(weight, context, nodes - step % VARIETY);
            ggml_backend_sched_reset(sched);
            if (!ggml_backend_sched_alloc_graph(sched, work.graph)) {
                give_up("a graph cannot be allocated");
            }
        }
        if (changing) {
            change(&work, step);
        }
        for (int at = 0; at < INPUTS; at++) {
            values[0] = (float) (step % 7 + at);
            ggml_backend_tensor_set(work.inputs[at], values, 0, sizeof values);
        }
        enum ggml_status status = plain ? ggml_backend_graph_compute_async(backends[0], work.graph)
                                        : ggml_backend_sched_graph_compute_async(sched, work.graph);
        if (status != GGML_STATUS_SUCCESS) {
            fprintf(stderr, "steps: computing ended with status %d\n", status);
            return 3;
        }
        float result[WIDTH];
        ggml_backend_tensor_get_async(backends[0], work.result, result, 0, sizeof result);
        ggml_backend_synchronize(backends[0]);
        sum += result[0] + result[1];
        if (anew && (step + 1) % (steps / 10) == 0) {
            printf("mark %d\n", step + 1);
            fflush(stdout);
        }
    }
    while (anew) {
        pause();
    }
    printf("nodes %d\nsum %.6f\n", ggml_graph_n_nodes(work.graph), sum);
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(weights);
    ggml_backend_buffer_free(own);
    ggml_free(context);
    ggml_free(leaves);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
    return 0;
}
