/* Greedy decoding with llama.cpp's C interface, one line a token, so that a test can see how far it is.
 *
 *   decode BACKENDS MODEL DEVICE COUNT [fork-at INDEX]
 *
 * BACKENDS: the folder with ggml's back-end libraries. DEVICE: a device's name, or "none" for the CPU.
 * Prints "token INDEX ID HASH", the hash being FNV-1a over the bytes of all logits that chose the token.
 * Exits with 3 if llama_decode fails, 2 if something could not be set up.
 * DECODE_THREADS in the environment: threads to compute with, instead of 2.
 * With fork-at: before that token a forked child tries to compute, prints "child ..." lines to stderr and
 * ends; then the parent goes on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ggml-backend.h"
#include "llama.h"

static const char *const PROMPT = "Once upon a time there was a ferry that";
enum { MAX_PROMPT_TOKENS = 64, CONTEXT_TOKENS = 1024, THREADS = 2, CHILD_SECONDS = 20 };

static void give_up(const char *what) {
    fprintf(stderr, "decode: %s\n", what);
    exit(2);
}

static uint64_t fnv1a(const void *data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const unsigned char *byte = data, *end = byte + size; byte < end; byte++) {
        hash = (hash ^ *byte) * 0x100000001b3u;
    }
    return hash;
}

static llama_token greediest(const float *logits, int32_t count) {
    llama_token best = 0;
    for (llama_token id = 1; id < count; id++) {
        if (logits[id] > logits[best]) {
            best = id;
        }
    }
    return best;
}

static struct llama_model *load(const char *path, const char *device_name) {
    ggml_backend_dev_t devices[2] = { NULL, NULL };
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    if (strcmp(device_name, "none") != 0) {
        devices[0] = ggml_backend_dev_by_name(device_name);
        if (devices[0] == NULL) {
            give_up("no such device");
        }
        params.n_gpu_layers = 99;
    }
    params.devices = devices;
    struct llama_model *model = llama_model_load_from_file(path, params);
    if (model == NULL) {
        give_up("the model does not load");
    }
    return model;
}

/* What a process that forks while it computes does wrong: the child uses what it inherited. */
static void compute_in_child(struct llama_context *context, const char *device_name, llama_token token) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        ggml_backend_dev_t device = ggml_backend_dev_by_name(device_name);
        if (device != NULL) {
            fprintf(stderr, "child new back-end: %s\n", ggml_backend_dev_init(device, NULL) ? "made" : "refused");
            ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), 4096);
            fprintf(stderr, "child new buffer: %s\n", buffer ? "made" : "refused");
        }
        /* One thread: OpenMP's do not survive a fork, which is not what is tested. */
        llama_set_n_threads(context, 1, 1);
        fprintf(stderr, "child decode: %d\n", llama_decode(context, llama_batch_get_one(&token, 1)));
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        give_up("fork or waitpid failed");
    }
    fprintf(stderr, "child ended: %s %d\n", WIFEXITED(status) ? "exit" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 7) {
        give_up("usage: decode BACKENDS MODEL DEVICE COUNT [fork-at INDEX]");
    }
    const char *device_name = argv[3];
    int count = atoi(argv[4]);
    int fork_at = argc == 7 ? atoi(argv[6]) : -1;

    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    struct llama_model *model = load(argv[2], device_name);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT_TOKENS;
    const char *threads = getenv("DECODE_THREADS");
    params.n_threads = params.n_threads_batch = threads != NULL ? atoi(threads) : THREADS;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        give_up("no context");
    }

    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int32_t vocab_size = llama_vocab_n_tokens(vocab);
    llama_token tokens[MAX_PROMPT_TOKENS];
    int32_t length = llama_tokenize(vocab, PROMPT, (int32_t) strlen(PROMPT), tokens, MAX_PROMPT_TOKENS, true, false);
    if (length <= 0) {
        give_up("the prompt does not tokenize");
    }
    struct llama_batch batch = llama_batch_get_one(tokens, length);
    llama_token token = 0;
    for (int index = 0; index < count; index++) {
        if (index == fork_at) {
            compute_in_child(context, device_name, token);
        }
        int32_t result = llama_decode(context, batch);
        if (result != 0) {
            fprintf(stderr, "decode: llama_decode returned %d\n", result);
            exit(3);
        }
        const float *logits = llama_get_logits_ith(context, -1);
        token = greediest(logits, vocab_size);
        uint64_t hash = fnv1a(logits, (size_t) vocab_size * sizeof(float));
        printf("token %d %d %016llx\n", index, token, (unsigned long long) hash);
        fflush(stdout);
        batch = llama_batch_get_one(&token, 1);
    }
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
