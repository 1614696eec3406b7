/* What `guest.c` says to `host.c`: a packet of one byte with the descriptor of the memory that blobs are in, then
 * requests. What answers there are is for ggml-virtgpu to find in its own blobs. */
#pragma once

#include <stdint.h>

/* The variable that has the host's socket. */
#define HOST_SOCKET "VIRTGPU_HOST"

enum {
    /* Blobs at once; ggml-virtgpu keeps two, and one for each buffer and each large transfer. Handles are from 1. */
    MAX_BLOBS = 1024,
    /* ggml-virtgpu encodes a command in 4 KiB. */
    MAX_COMMAND_BYTES = 4096,
};

struct request {
    enum { CREATE_BLOB, DESTROY_BLOB, EXECUTE } kind;
    uint32_t blob;
    /* Where a new blob is, and its size. */
    uint64_t offset, size;
    /* Of an execution: as long as the packet. */
    char command[MAX_COMMAND_BYTES];
};
