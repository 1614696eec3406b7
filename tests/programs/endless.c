/* Decodes tokens without an end in sight, with a context that starts over whenever it is full.
 *
 *   endless BACKENDS MODEL DEVICE CONTEXT MARK...
 *
 * BACKENDS: the folder with ggml's back-end libraries. DEVICE: a device's name. CONTEXT: tokens until it starts over; a
 * batch at the start of each round has another length than the last one's, so that there are ever new graphs.
 * Prints "mark STEPS" each time that MARK steps were done; after the last one it waits to be killed.
 * Exits with 3 if llama_decode fails, 2 if something could not be set up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ggml-backend.h"
#include "llama.h"

enum { BATCH_MAX = 64, THREADS = 1 };

static void give_up(const char *what) {
    fprintf(stderr, "endless: %s\n", what);
    exit(2);
}

static struct llama_context *start(const char *path, const char *device_name, unsigned context_tokens) {
    ggml_backend_dev_t devices[2] = { ggml_backend_dev_by_name(device_name), NULL };
    if (devices[0] == NULL) {
        give_up("no such device");
    }
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 99;
    model_params.devices = devices;
    struct llama_model *model = llama_model_load_from_file(path, model_params);
    if (model == NULL) {
        give_up("the model does not load");
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = context_tokens;
    params.n_threads = params.n_threads_batch = THREADS;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        give_up("no context");
    }
    return context;
}

static void decode(struct llama_context *context, llama_token *tokens, int count) {
    int result = llama_decode(context, llama_batch_get_one(tokens, count));
    if (result != 0) {
        fprintf(stderr, "endless: llama_decode returned %d\n", result);
        exit(3);
    }
}

int main(int argc, char **argv) {
    if (argc < 6) {
        give_up("usage: endless BACKENDS MODEL DEVICE CONTEXT MARK...");
    }
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    int context_tokens = atoi(argv[4]);
    struct llama_context *context = start(argv[2], argv[3], (unsigned) context_tokens);
    llama_memory_t memory = llama_get_memory(context);
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));

    llama_token tokens[BATCH_MAX];
    int position = 0, rounds = 0;
    long steps = 0;
    for (int mark = 5; mark < argc; mark++) {
        for (long until = atol(argv[mark]); steps < until; steps++) {
            int count = position == 0 ? 1 + rounds % BATCH_MAX : 1;
            if (position + count > context_tokens) {
                llama_memory_clear(memory, false);
                position = 0;
                rounds++;
                count = 1 + rounds % BATCH_MAX;
            }
            for (int at = 0; at < count; at++) {
                tokens[at] = (llama_token) ((steps + at) % vocabulary);
            }
            decode(context, tokens, count);
            /* Whoever decodes looks at the result. */
            if (llama_get_logits_ith(context, -1) == NULL) {
                give_up("no logits");
            }
            position += count;
        }
        printf("mark %ld\n", steps);
        fflush(stdout);
    }
    for (;;) {
        pause();
    }
}
