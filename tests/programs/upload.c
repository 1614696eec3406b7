/* How fast bytes get into a device's memory and out of it, beside memcpy in this process.
 *
 *   upload BACKENDS DEVICE MEBIBYTES ROUNDS
 *
 * BACKENDS: the folder with ggml's back-end libraries. Each round copies a block of so many
 * mebibytes within the process, uploads it in one piece and reads it back, and checks what came. A part of it is also
 * uploaded from the device's host buffers, as llama.cpp does with a file that it does not map. Prints
 * "round INDEX memcpy GB/s upload GB/s staged GB/s download GB/s"; exits with 1 if the device is missing or bytes differ.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

enum { STAGING_BYTES = 64 << 20 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: upload BACKENDS DEVICE MEBIBYTES ROUNDS\n");
        return 2;
    }
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[2]);
    size_t bytes = (size_t)atoi(argv[3]) << 20;
    if (device == NULL) {
        fprintf(stderr, "upload: there is no device %s\n", argv[2]);
        return 1;
    }
    struct ggml_init_params params = {.mem_size = 1 << 16, .no_alloc = true};
    struct ggml_context *context = ggml_init(params);
    struct ggml_tensor *tensor = ggml_new_tensor_1d(context, GGML_TYPE_F32, (int64_t)(bytes / sizeof(float)));
    /* A session that computes nothing is counted as nobody's. */
    struct ggml_cgraph *graph = ggml_new_graph_custom(context, 8, false);
    ggml_build_forward_expand(graph, ggml_scale_inplace(context, tensor, 1.0f));
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    ggml_backend_buffer_t buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_dev_buffer_type(device));
    uint32_t *from = malloc(bytes), *to = malloc(bytes);
    if (backend == NULL || buffer == NULL || from == NULL || to == NULL) {
        fprintf(stderr, "upload: no room for %zu bytes\n", bytes);
        return 1;
    }
    size_t staged_bytes = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
    ggml_backend_buffer_type_t staging_type = ggml_backend_dev_host_buffer_type(device);
    ggml_backend_buffer_t staging =
        staging_type != NULL ? ggml_backend_buft_alloc_buffer(staging_type, staged_bytes) : NULL;
    void *staged = staging != NULL ? ggml_backend_buffer_get_base(staging) : malloc(staged_bytes);
    memset(to, 1, bytes);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "upload: computing fails\n");
        return 1;
    }
    for (int round = 0; round < atoi(argv[4]); round++) {
        for (size_t at = 0; at < bytes / sizeof(uint32_t); at++) {
            from[at] = (uint32_t)at * 2654435761u + (uint32_t)round;
        }
        memcpy(staged, from, staged_bytes);
        double begun = now();
        ggml_backend_tensor_set(tensor, staged, 0, staged_bytes);
        ggml_backend_tensor_get(tensor, to, staged_bytes - sizeof(float), sizeof(float));
        double start = now();
        double staging_seconds = start - begun;
        memcpy(to, from, bytes);
        double copied = now();
        ggml_backend_tensor_set(tensor, from, 0, bytes);
        /* What is posted has arrived when something behind it has come back. */
        ggml_backend_tensor_get(tensor, to, bytes - sizeof(float), sizeof(float));
        double uploaded = now();
        ggml_backend_tensor_get(tensor, to, 0, bytes);
        double downloaded = now();
        if (memcmp(from, to, bytes) != 0) {
            fprintf(stderr, "upload: other bytes came back\n");
            return 1;
        }
        double gigabytes = 1e-9 * (double)bytes;
        printf("round %d memcpy %.3f upload %.3f staged %.3f download %.3f\n", round,
               gigabytes / (copied - start), gigabytes / (uploaded - copied),
               1e-9 * (double)staged_bytes / staging_seconds, gigabytes / (downloaded - uploaded));
        fflush(stdout);
    }
    ggml_backend_buffer_free(staging);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    ggml_free(context);
    free(from);
    free(to);
    return 0;
}
