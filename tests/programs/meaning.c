/* Operations whose meaning ggml changed over the years, computed by a device and by the CPU, and compared.
 *
 *   meaning GGML_LIBRARY BACKENDS DEVICE
 *
 * GGML_LIBRARY: libggml of some release, which is opened as Python or Node would open it: its symbols are visible to
 * nobody else. BACKENDS: the folder with its back-end libraries. Declares what it calls itself, for all releases have
 * these functions with these types: where one got a parameter more at its end, an older one does not look at it.
 * Prints "CASE equal", "CASE differs" or "CASE declined" for each case that the release has.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, I32 = 26, I64 = 27, MAX_VALUES = 1 << 16 };

typedef struct ggml_context ggml_context;
typedef struct ggml_tensor ggml_tensor;
typedef void *handle;

struct init_params {
    size_t size;
    void *buffer;
    bool no_alloc;
};

static void *library;

static void give_up(const char *what) {
    fprintf(stderr, "meaning: %s\n", what);
    exit(2);
}

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (function == NULL) {
        give_up(name);
    }
    return function;
}

#define CALL(type, name, ...) ((type) find(name))(__VA_ARGS__)
#define CONTEXT ggml_context *
#define TENSOR ggml_tensor *

static TENSOR tensor(CONTEXT ctx, int type, int64_t a, int64_t b, int64_t c, int64_t d) {
    return CALL(TENSOR (*)(CONTEXT, int, int64_t, int64_t, int64_t, int64_t), "ggml_new_tensor_4d", ctx, type, a, b, c, d);
}

typedef TENSOR (*builder)(CONTEXT ctx, TENSOR inputs[8]);

static TENSOR pad(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 5, 3, 2, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR, int, int, int, int), "ggml_pad", ctx, in[0], 2, 0, 1, 0);
}

static TENSOR pad_before(CONTEXT ctx, TENSOR in[8]) {
    if (dlsym(library, "ggml_pad_ext") == NULL) {
        return NULL;
    }
    in[0] = tensor(ctx, F32, 5, 3, 2, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR, int, int, int, int, int, int, int, int), "ggml_pad_ext", ctx, in[0], 1, 2, 0,
                1, 0, 0, 0, 0);
}

static TENSOR set_rows(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 8, 6, 1, 1);
    in[1] = tensor(ctx, F32, 8, 4, 1, 1);
    in[2] = tensor(ctx, I64, 4, 1, 1, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR, TENSOR, TENSOR), "ggml_set_rows", ctx, in[0], in[1], in[2]);
}

static TENSOR ssm_scan(CONTEXT ctx, TENSOR in[8]) {
    enum { STATE = 16, HEAD = 4, HEADS = 2, TOKENS = 3 };
    in[0] = tensor(ctx, F32, STATE, HEAD, HEADS, 1);
    in[1] = tensor(ctx, F32, HEAD, HEADS, TOKENS, 1);
    in[2] = tensor(ctx, F32, HEADS, TOKENS, 1, 1);
    in[3] = tensor(ctx, F32, 1, HEADS, 1, 1);
    in[4] = tensor(ctx, F32, STATE, 1, TOKENS, 1);
    in[5] = tensor(ctx, F32, STATE, 1, TOKENS, 1);
    in[6] = tensor(ctx, I32, 1, 1, 1, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR, TENSOR, TENSOR, TENSOR, TENSOR, TENSOR, TENSOR, int64_t), "ggml_ssm_scan", ctx,
                in[0], in[1], in[2], in[3], in[4], in[5], in[6], 1);
}

static TENSOR silu(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 9, 5, 1, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR), "ggml_silu", ctx, in[0]);
}

static TENSOR swiglu(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 16, 5, 1, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR), "ggml_swiglu", ctx, in[0]);
}

static TENSOR timestep(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 3, 1, 1, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR, int, int), "ggml_timestep_embedding", ctx, in[0], 7, 10000);
}

static TENSOR soft_max(CONTEXT ctx, TENSOR in[8]) {
    in[0] = tensor(ctx, F32, 32, 4, 2, 1);
    return CALL(TENSOR (*)(CONTEXT, TENSOR), "ggml_soft_max", ctx, in[0]);
}

static const struct {
    const char *name;
    builder build;
} CASES[] = {
    { "pad", pad },       { "pad-before", pad_before }, { "set-rows", set_rows }, { "ssm-scan", ssm_scan },
    { "silu", silu },     { "swiglu", swiglu },         { "timestep", timestep }, { "soft-max", soft_max },
};

/* Values that depend on the place alone; indices are 0, 1, 2, … */
static void fill(TENSOR tensor, int input) {
    static char data[MAX_VALUES * 8];
    size_t size = CALL(size_t (*)(TENSOR), "ggml_nbytes", tensor);
    int64_t count = CALL(int64_t (*)(TENSOR), "ggml_nelements", tensor);
    if (size > sizeof data) {
        give_up("a tensor is too large");
    }
    for (int64_t at = 0; at < count; at++) {
        if (size == (size_t) count * 8) {
            ((int64_t *) data)[at] = count - 1 - at;
        } else if (input == 6) {
            ((int32_t *) data)[at] = (int32_t) at;
        } else {
            ((float *) data)[at] = sinf((float) (at + 1) * (0.37f + 0.1f * (float) input));
        }
    }
    CALL(void (*)(TENSOR, const void *, size_t, size_t), "ggml_backend_tensor_set", tensor, data, 0, size);
}

/* The result's values on `device`; -1 if it declines. */
static int64_t compute(builder build, handle device, float values[MAX_VALUES]) {
    struct init_params params = { 1 << 20, NULL, true };
    CONTEXT ctx = CALL(CONTEXT (*)(struct init_params), "ggml_init", params);
    TENSOR inputs[8] = { NULL };
    TENSOR result = build(ctx, inputs);
    int64_t count = -1;
    if (result == NULL) {
        count = -2;
    } else if (CALL(bool (*)(handle, TENSOR), "ggml_backend_dev_supports_op", device, result)) {
        handle backend = CALL(handle (*)(handle, const char *), "ggml_backend_dev_init", device, NULL);
        void *graph = CALL(void *(*) (CONTEXT), "ggml_new_graph", ctx);
        CALL(void (*)(void *, TENSOR), "ggml_build_forward_expand", graph, result);
        handle buffer = CALL(handle (*)(CONTEXT, handle), "ggml_backend_alloc_ctx_tensors", ctx, backend);
        if (backend == NULL || buffer == NULL) {
            give_up("the device has no memory");
        }
        for (int input = 0; input < 8; input++) {
            if (inputs[input] != NULL) {
                fill(inputs[input], input);
            }
        }
        if (CALL(int (*)(handle, void *), "ggml_backend_graph_compute", backend, graph) != 0) {
            give_up("a graph failed");
        }
        size_t size = CALL(size_t (*)(TENSOR), "ggml_nbytes", result);
        count = (int64_t) (size / sizeof(float));
        CALL(void (*)(TENSOR, void *, size_t, size_t), "ggml_backend_tensor_get", result, values, 0, size);
        CALL(void (*)(handle), "ggml_backend_buffer_free", buffer);
        CALL(void (*)(handle), "ggml_backend_free", backend);
    }
    CALL(void (*)(CONTEXT), "ggml_free", ctx);
    return count;
}

static float native[MAX_VALUES], ours[MAX_VALUES];

int main(int argc, char **argv) {
    if (argc != 4) {
        give_up("usage: meaning GGML_LIBRARY BACKENDS DEVICE");
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        give_up(dlerror());
    }
    CALL(void (*)(const char *), "ggml_backend_load_all_from_path", argv[2]);
    handle cpu = CALL(handle (*)(const char *), "ggml_backend_dev_by_name", "CPU");
    handle device = CALL(handle (*)(const char *), "ggml_backend_dev_by_name", argv[3]);
    if (cpu == NULL || device == NULL) {
        give_up("no such device");
    }
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        int64_t expected = compute(CASES[at].build, cpu, native);
        if (expected < 0) {
            continue;
        }
        int64_t count = compute(CASES[at].build, device, ours);
        const char *verdict = count == expected ? "equal" : count == -1 ? "declined" : "differs";
        for (int64_t value = 0; value < count; value++) {
            /* Kernels of other releases round otherwise. */
            if (!(fabsf(ours[value] - native[value]) <= 1e-4f * (1.0f + fabsf(native[value])))) {
                verdict = "differs";
            }
        }
        printf("%s %s\n", CASES[at].name, verdict);
    }
    return 0;
}
